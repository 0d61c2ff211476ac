#pragma once
#include <string>

#include "client/cli/options.h"

namespace troupe::spec {
struct ModelSpec;
}

namespace troupe::cli {

/// `--model-plugin FILE`, repeatable: opened as soon as it is read. Before options that know what
/// plugins bring.
void add_model_plugin_option(Options& app);

/// The model in the folder that --model names. Throws std::runtime_error that names the option.
spec::ModelSpec read_model_folder(const std::string& folder);

/// Returns what else the name of a folder that does not exist may be ("; …": a file, or a model's
/// name on the Hugging Face hub), or "". `folder`: an absolute path.
std::string model_hint(const std::string& folder);

}  // namespace troupe::cli
