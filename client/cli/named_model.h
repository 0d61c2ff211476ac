#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/options.h"

namespace troupe::cli {

/// Options that go with `--model` where a command reads the model itself.
struct ModelParts {
  bool fetch = false;  // what a name of the hub stands for, where the cache lacks it
  std::string base;    // folder or name of the model whose other parts a file needs
  std::string vae;     // file or folder in the place of the model's own, as the others; "" = none
  std::string text_encoder;
  std::string text_encoder_2;
  std::string text_encoder_3;
};
/// Adds `--fetch`, `--base`, `--vae` and `--text-encoder`, `-2`, `-3`.
void add_parts_options(Options& app, ModelParts& parts, const std::string& group = "Model");

/// Returns the whole path of the folder that `--model` names: of one that is there, else of a model
/// in the Hugging Face cache. With `--fetch`, or after a yes on the terminal, `hf` fetches what the
/// cache lacks. A file of weights, and parts that are named, become a folder of links below
/// ~/.cache/troupe/models, with what the base has beside them. Throws std::runtime_error that names
/// the option where there is no such model, UsageError for parts that nothing goes with.
std::string found_model(const std::string& text, const ModelParts& parts);

/// Warns where a folder here hides a model of the same name in the Hugging Face cache; `option` is
/// what names it, or "".
void warn_of_shadow(const std::string& option, const std::string& text);

/// Returns what a cluster is told of what `option` names: the whole path of a folder, and a name of
/// the hub as it stands, which the cluster looks up in the cache of its own machine.
std::string model_for_cluster(const std::string& text, std::string_view option = "--model");

/// Returns the folders that `--allow-models` names: of a name of the hub the repository's own in
/// the cache, with all that its snapshots link to. Throws std::runtime_error that names the option.
std::vector<std::string> allowed_folders(const std::vector<std::string>& texts);

}  // namespace troupe::cli
