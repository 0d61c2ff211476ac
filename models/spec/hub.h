#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::spec {

/// A model of the Hugging Face hub: "ORG/NAME", or "ORG/NAME@REVISION".
struct HubName {
  std::string repository;         ///< "ORG/NAME"
  std::string revision = "main";  ///< a branch, a tag or a commit

  bool operator==(const HubName&) const = default;
};

/// Returns the model of the hub that a text names, by a short name (`known_models`) too; nothing
/// for any other text: a whole path, "./DIR", a file of weights or a picture's, or what is too
/// long.
std::optional<HubName> hub_name(const std::string& text);
/// Returns the name as it is typed: without the revision where that is "main".
std::string hub_text(const HubName& name);

/// Returns the folder of the user's caches, as huggingface_hub finds it: XDG_CACHE_HOME, else
/// ~/.cache, where the home is HOME or what the system says of the user.
std::filesystem::path user_caches();

/// Returns the folder in which huggingface_hub keeps what it has fetched, by the same variables:
/// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, `hub` in HF_HOME, or in `huggingface` of XDG_CACHE_HOME,
/// else of ~/.cache.
std::filesystem::path hub_cache();
/// Returns whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids to ask the hub.
bool hub_is_offline();
/// Returns the folder of a repository in the cache, whether or not it is there. All links of its
/// snapshots lead to what lies below it.
std::filesystem::path cached_repository(const HubName& name);

/// Content of a repository: a whole pipeline, by its model_index.json, or a part of one alone, as
/// ControlNets come, by its config.json.
enum class HubContent { pipeline, part };

/// Returns the model's snapshot in the cache; nothing where there is none with that content.
/// Throws std::runtime_error for a snapshot with a link that leads out of its repository's folder.
std::optional<std::filesystem::path> cached_model(const HubName& name,
                                                  HubContent content = HubContent::pipeline);
/// Returns all models of the cache, those of revisions other than main by their commit.
std::vector<HubName> cached_models();

/// Returns the folder that a text names: a folder that is there goes before a name of the hub, and
/// a text that is no name stays as it is. Throws std::runtime_error for a name that is not in the
/// cache: where was looked, and the command that fetches it.
std::filesystem::path model_folder(const std::string& text,
                                   HubContent content = HubContent::pipeline);

/// Returns the same for a text that another process has sent, whose working directory is elsewhere:
/// a name is looked up in the cache alone.
std::filesystem::path cached_model_folder(const std::string& text,
                                          HubContent content = HubContent::pipeline);
/// Returns the same; the text itself where there is no such model in the cache, for whoever may not
/// learn that.
std::filesystem::path cached_model_folder_or_text(const std::string& text,
                                                  HubContent content = HubContent::pipeline);

/// Returns what a model is called where its whole path is not wanted: the name on the hub of a
/// snapshot in a cache and of a text that is one, else the last name of the folder.
std::string model_label(const std::string& folder);

/// Returns the words of the command that fetches a model into the cache: the files that are read,
/// no others, and no weights of the parts that are `replaced`.
std::vector<std::string> fetch_words(const HubName& name,
                                     const std::vector<std::string>& replaced = {},
                                     HubContent content = HubContent::pipeline);
/// Returns the same as a line for a shell.
std::string fetch_command(const HubName& name, HubContent content = HubContent::pipeline);

/// A published model by its short name.
struct KnownModel {
  std::string_view name;
  std::string_view repository;
  std::string_view licence;
  double network;   ///< 10^9 parameters of the transformer or U-Net
  double encoders;  ///< 10^9 parameters of the text encoders that are read
};
std::span<const KnownModel> known_models();

}  // namespace troupe::spec
