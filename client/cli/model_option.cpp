#include "client/cli/model_option.h"

#include <filesystem>
#include <regex>
#include <vector>

#include "client/cli/options.h"
#include "client/cli/verb.h"
#include "models/spec/model_plugin.h"
#include "models/text/tokenizers.h"

namespace troupe::cli {
namespace fs = std::filesystem;

void add_model_plugin_option(Options& app) {
  const Check open([](std::string& file) -> std::string {
    try {
      spec::open_model_plugin(file);
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  });
  app.add_option_function<std::vector<std::string>>(
         "--model-plugin", [](const std::vector<std::string>&) {},
         "Shared library with models or samplers of your own, whose code this process and its "
         "actors run (repeatable; docs/adding-a-model.md)")
      ->check(not_empty())
      ->check(open)
      ->type_name("FILE");
}

spec::ModelSpec read_model_folder(const std::string& folder) {
  try {
    return naming("--model", [&] { return models::read_model_folder(folder); });
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(error.what() + model_hint(folder));
  }
}

std::string model_hint(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return "";
  if (fs::exists(folder, error)) {
    const auto kind = fs::path(folder).extension();
    const std::string file = ": it is a file, and a model is a folder in diffusers' layout";
    if (kind == ".safetensors" || kind == ".ckpt")
      return file +
             "; in Python diffusers makes one of it: StableDiffusionXLPipeline (or that of "
             "its family).from_single_file(FILE).save_pretrained(DIR)";
    if (kind == ".gguf")
      return file +
             "; weights in gguf are not read: `hf download ORG/NAME --local-dir DIR` gets "
             "the same model as a folder";
    return file;
  }
  static const std::regex kHubName("[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*");
  const fs::path here = fs::current_path(error);
  const std::string name = fs::path(folder).lexically_relative(here).string();
  if (!std::regex_match(name, kHubName) || fs::exists(fs::path(folder).parent_path(), error))
    return "";
  return "; a model is a local folder in diffusers' layout: `hf download " + name +
         " --local-dir DIR` makes one of what the hub has under this name";
}

}  // namespace troupe::cli
