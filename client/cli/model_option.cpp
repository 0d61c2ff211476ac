#include "client/cli/model_option.h"

#include <filesystem>
#include <regex>

#include "client/cli/verb.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace fs = std::filesystem;

spec::ModelSpec read_model_folder(const std::string& folder) {
  try {
    return naming("--model", [&] { return spec::read_model_spec(folder); });
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(error.what() + model_hint(folder));
  }
}

std::string model_hint(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return "";
  if (fs::exists(folder, error)) return ": it is a file, and a model is a folder";
  static const std::regex kHubName("[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*");
  const fs::path here = fs::current_path(error);
  const std::string name = fs::path(folder).lexically_relative(here).string();
  if (!std::regex_match(name, kHubName) || fs::exists(fs::path(folder).parent_path(), error))
    return "";
  return "; a model is a local folder in diffusers' layout: `hf download " + name +
         " --local-dir DIR` makes one of what the hub has under this name";
}

}  // namespace troupe::cli
