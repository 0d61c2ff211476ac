#include "models/spec/hub.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <regex>
#include <stdexcept>

#include "base/allowed_folders.h"
#include "base/text.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRefBytes = 256;
constexpr std::size_t kMostNameBytes = 400;  // of a name and its revision; the hub takes fewer
constexpr std::string_view kPrefix = "models--";

constexpr KnownModel kKnown[] = {
#define KNOWN_MODEL(...) {__VA_ARGS__},
#include "models/spec/known_models.def"
#undef KNOWN_MODEL
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string home() {
  if (std::string set = variable("HOME"); !set.empty()) return set;
  const passwd* user = getpwuid(getuid());
  return user == nullptr || user->pw_dir == nullptr ? "/" : user->pw_dir;
}

/// Returns a folder as huggingface_hub takes it from a variable: $NAME and ${NAME} are put in where
/// they are set, and ~ at the beginning is the home.
fs::path expanded(const std::string& text) {
  static const std::regex kVariable(R"(\$(\w+|\{[^}]*\}))");
  std::string out;
  auto from = text.begin();
  for (std::sregex_iterator found(text.begin(), text.end(), kVariable), end; found != end;
       ++found) {
    std::string name = (*found)[1];
    if (name.starts_with('{')) name = name.substr(1, name.size() - 2);
    const char* value = std::getenv(name.c_str());
    out.append(from, text.begin() + found->position());
    out += value == nullptr ? found->str() : value;
    from = text.begin() + found->position() + found->length();
  }
  out.append(from, text.end());
  if (out == "~" || out.starts_with("~/")) out.replace(0, 1, home());
  return out;
}

/// Returns whether a text may stand for one folder, or several below each other: no part of it
/// leads upwards.
bool leads_down(const std::string& text) {
  const fs::path path(text);
  return !text.empty() && !path.is_absolute() &&
         std::ranges::none_of(path,
                              [](const fs::path& part) { return part == ".." || part == "."; });
}

/// Returns whether a text is made of letters, digits and these marks, a letter or digit first.
bool is_word(std::string_view text, std::string_view marks) {
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  return !text.empty() && plain(text.front()) && std::ranges::all_of(text, [&](char c) {
    return plain(c) || marks.find(c) != std::string_view::npos;
  });
}

/// Returns whether a text names a file of those that Troupe reads or writes.
bool is_file_name(const std::string& text) {
  return std::ranges::any_of(std::array{".png", ".jpg", ".jpeg", ".webp", ".mp4", ".webm",
                                        ".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin"},
                             [&](const char* ending) { return text.ends_with(ending); });
}

/// Returns the commit that a branch or tag stood for when it was fetched; else the text itself.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path ref = repository / "refs" / revision;
  std::error_code error;
  if (!fs::is_regular_file(ref, error)) return revision;
  std::string commit = read_text_file(ref, kMaxRefBytes);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0)
    commit.pop_back();
  return commit;
}

/// Returns "ORG/NAME" of "models--ORG--NAME"; "" of any other folder's name.
std::string repository_of(const std::string& folder) {
  if (!folder.starts_with(kPrefix)) return "";
  std::string name = folder.substr(kPrefix.size());
  const auto bar = name.find("--");
  if (bar == std::string::npos) return "";
  return name.replace(bar, 2, "/");
}

}  // namespace

std::optional<HubName> hub_name(const std::string& text) {
  const auto at = text.find('@');
  HubName name{.repository = text.substr(0, at)};
  if (at != std::string::npos) name.revision = text.substr(at + 1);
  if (text.size() > kMostNameBytes || is_file_name(text) || !is_word(name.revision, "_.-+/") ||
      !leads_down(name.revision))
    return std::nullopt;
  const auto known = std::ranges::find(kKnown, name.repository, &KnownModel::name);
  if (known != std::end(kKnown)) {
    name.repository = known->repository;
    return name;
  }
  const auto slash = name.repository.find('/');
  if (slash == std::string::npos || !is_word(name.repository.substr(0, slash), "_.-") ||
      !is_word(name.repository.substr(slash + 1), "_.-"))
    return std::nullopt;
  return name;
}

std::string hub_text(const HubName& name) {
  return name.repository + (name.revision == "main" ? "" : "@" + name.revision);
}

fs::path user_caches() {
  const std::string set = variable("XDG_CACHE_HOME");
  return expanded(set.empty() ? "~/.cache" : set);
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string set = variable(name); !set.empty()) return expanded(set);
  if (const std::string home = variable("HF_HOME"); !home.empty()) return expanded(home) / "hub";
  return user_caches() / "huggingface" / "hub";
}

bool hub_is_offline() {
  std::string set = variable("HF_HUB_OFFLINE");
  if (set.empty()) set = variable("TRANSFORMERS_OFFLINE");
  std::ranges::transform(set, set.begin(), [](unsigned char c) { return std::toupper(c); });
  return set == "1" || set == "ON" || set == "YES" || set == "TRUE";
}

fs::path cached_repository(const HubName& name) {
  std::string folder = name.repository;
  if (const auto slash = folder.find('/'); slash != std::string::npos)
    folder.replace(slash, 1, "--");
  return fs::absolute(hub_cache() / (std::string(kPrefix) + folder));
}

std::optional<fs::path> cached_model(const HubName& name, HubContent content) {
  const fs::path repository = cached_repository(name);
  const std::string commit = commit_of(repository, name.revision);
  if (commit.find('/') != std::string::npos || !leads_down(commit)) return std::nullopt;
  const fs::path snapshot = repository / "snapshots" / commit;
  std::error_code error;
  const char* index = content == HubContent::pipeline ? "model_index.json" : "config.json";
  if (!fs::is_regular_file(snapshot / index, error)) return std::nullopt;
  const AllowedFolders own({repository.string()});
  const auto real = own.resolve(fs::absolute(snapshot, error).string());
  const auto link = real ? own.link_out(*real) : snapshot.string();
  if (link)
    throw std::runtime_error("[read_model] " + *link +
                             ": is a link out of the model's folder in the Hugging Face cache, " +
                             repository.string());
  return snapshot;
}

std::vector<HubName> cached_models() {
  std::vector<HubName> models;
  std::error_code error;
  for (fs::directory_iterator entry(hub_cache(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string repository = repository_of(entry->path().filename().string());
    if (repository.empty()) continue;
    std::string main;
    try {
      main = commit_of(entry->path(), "main");
    } catch (const std::runtime_error&) {
      // Snapshots of a repository whose branch cannot be read are listed by their commits.
    }
    std::error_code none;
    for (fs::directory_iterator snapshot(entry->path() / "snapshots", none), last;
         !none && snapshot != last; snapshot.increment(none)) {
      const std::string commit = snapshot->path().filename().string();
      std::error_code missing;
      if (fs::is_regular_file(snapshot->path() / "model_index.json", missing))
        models.push_back({repository, commit == main ? "main" : commit});
    }
  }
  std::ranges::sort(models, {}, hub_text);
  return models;
}

fs::path model_folder(const std::string& text, HubContent content) {
  std::error_code error;
  return fs::exists(text, error) ? fs::path(text) : cached_model_folder(text, content);
}

fs::path cached_model_folder(const std::string& text, HubContent content) {
  const auto name = hub_name(text);
  if (!name) return text;
  if (auto found = cached_model(*name, content)) return *found;
  throw std::runtime_error("[read_model] " + text + ": is no folder here, and not in the Hugging " +
                           "Face cache " + hub_cache().string() + "; `" +
                           fetch_command(*name, content) + "` fetches what is read of it");
}

fs::path cached_model_folder_or_text(const std::string& text, HubContent content) {
  try {
    return cached_model_folder(text, content);
  } catch (const std::runtime_error&) {
    return text;
  }
}

std::string model_label(const std::string& folder) {
  if (const auto name = hub_name(folder)) return hub_text(*name);
  fs::path path = fs::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // of "DIR/"
  const fs::path snapshots = path.parent_path();
  if (snapshots.filename() == "snapshots")
    if (auto name = repository_of(snapshots.parent_path().filename().string()); !name.empty())
      return name;
  return last_name(folder);
}

std::vector<std::string> fetch_words(const HubName& name, const std::vector<std::string>& replaced,
                                     HubContent content) {
  std::vector<std::string> words = {"hf", "download", name.repository};
  if (name.revision != "main") words.insert(words.end(), {"--revision", name.revision});
  static const std::vector<std::string> kPart = {"config.json", "diffusion_pytorch_model*.[js]*"};
  static const std::vector<std::string> kPipeline = {"model_index.json",
                                                     "scheduler/*.json",
                                                     "tokenizer*/*",
                                                     "text_encoder[_/]*.[js]*",
                                                     "transformer[_/]*.[js]*",
                                                     "unet/*.[js]*",
                                                     "controlnet[_/]*.[js]*",
                                                     "vae/*.[js]*",
                                                     "processor/*processor_config.json",
                                                     "image_*/*.[js]*"};
  for (const std::string& read : content == HubContent::part ? kPart : kPipeline)
    words.insert(words.end(), {"--include", read});
  for (const char* unread : {"*.fp16.*", "*.bf16.*", "*non_ema*"})
    words.insert(words.end(), {"--exclude", unread});
  for (const std::string& part : replaced)
    words.insert(words.end(), {"--exclude", part + "/*.safetensors*"});
  return words;
}

std::string fetch_command(const HubName& name, HubContent content) {
  std::string line;
  for (const std::string& word : fetch_words(name, {}, content)) {
    const bool plain = word.find_first_of("*[") == std::string::npos;
    line += (line.empty() ? "" : " ") + (plain ? word : "\"" + word + "\"");
  }
  return line;
}

std::span<const KnownModel> known_models() {
  return kKnown;
}

}  // namespace troupe::spec
