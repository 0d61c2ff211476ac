#pragma once
#include <string>
#include <vector>

#include "client/cli/options.h"

namespace troupe::cli {

/// `--fetch`: what a name of the hub stands for is fetched where the cache lacks it.
Option* add_fetch_option(Options& app, bool& fetch);

/// Returns the whole path of the folder that `--model` names: of one that is there, else of a model
/// in the Hugging Face cache. With `fetch`, or after a yes on the terminal, `hf` fetches what the
/// cache lacks. Throws std::runtime_error that names the option where there is no such model.
std::string found_model(const std::string& text, bool fetch);

/// Returns what a cluster is told of `--model`: the whole path of a folder, and a name of the hub
/// as it stands, which the cluster looks up in the cache of its own machine.
std::string model_for_cluster(const std::string& text);

/// Returns the folders that `--allow-models` names: of a name of the hub the repository's own in
/// the cache, with all that its snapshots link to. Throws std::runtime_error that names the option.
std::vector<std::string> allowed_folders(const std::vector<std::string>& texts);

}  // namespace troupe::cli
