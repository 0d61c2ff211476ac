#include "models/text/special_tokens.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "base/format.h"
#include "models/spec/json_text.h"

namespace troupe::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMaxAddedTokensBytes = 16U << 20U;
constexpr std::int64_t kMaxAddedId = 1 << 24;

[[noreturn]] void refuse_tokens(const fs::path& file, const std::string& why) {
  throw std::runtime_error("[load_tokenizer] " + file.string() + ": " + why);
}

/// A token as JSON writes it: its text, which means a special token, or an object with flags.
AddedToken read_token(const fs::path& file, const std::string& key, const Json& value,
                      bool special) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty())
    return {value.get<std::string>()};
  const auto flag = [&](const char* name, bool fallback) {
    const auto found = value.find(name);
    if (found == value.end()) return fallback;
    if (!found->is_boolean())
      refuse_tokens(file, fmt::format("{}: \"{}\" must be true or false", key, name));
    return found->get<bool>();
  };
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string() ||
      value["content"].get_ref<const std::string&>().empty()) {
    refuse_tokens(file, key + " is not a token");
  }
  return {.content = value["content"].get<std::string>(),
          .lstrip = flag("lstrip", false),
          .rstrip = flag("rstrip", false),
          .single_word = flag("single_word", false),
          .normalized = flag("normalized", !flag("special", special))};
}

void require_few(const fs::path& file, const std::string& key, const Json& tokens) {
  if (tokens.size() > kMaxAddedTokens) {
    refuse_tokens(file, fmt::format("{} has {} tokens, at most {} are read", key, tokens.size(),
                                    kMaxAddedTokens));
  }
}

std::int64_t read_id(const fs::path& file, const std::string& key, const Json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxAddedId)
    refuse_tokens(file, fmt::format("{} has no id from 0 to {}", key, kMaxAddedId));
  return value.get<std::int64_t>();
}

}  // namespace

FolderTokens::FolderTokens(std::map<std::string, std::string> named) {
  for (auto& [key, token] : named)
    named_[key] = {.content = std::move(token), .implied = true};
}

void FolderTokens::read_named(const spec::ConfigReader& from, bool special) {
  for (const char* key : kKeys) {
    from.harmless({key});
    if (from.has_value(key)) named_[key] = read_token(from.file(), key, from.raw(key), special);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    from.harmless({key});
    if (!from.has_value(key)) continue;
    const Json& list = from.raw(key);
    if (!list.is_array() && !list.is_object()) from.refuse(key, "must be a list of tokens");
    require_few(from.file(), key, list);
    for (const Json& item : list) {
      auto token = read_token(from.file(), key, item, special);
      if (std::ranges::find(extra_, token) == extra_.end()) extra_.push_back(std::move(token));
    }
  }
}

void FolderTokens::read_config(const spec::ConfigReader& config) {
  const char* key = "added_tokens_decoder";
  read_named(config, false);
  config.harmless({key});
  has_list_ = config.has_value(key);
  if (!has_list_) return;
  const Json& list = config.raw(key);
  if (!list.is_object()) config.refuse(key, "must be an object");
  require_few(config.file(), key, list);
  for (const auto& [text, item] : list.items()) {
    std::int64_t id = -1;
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, id).ptr != end || id < 0 || id > kMaxAddedId)
      config.refuse(key, "has a bad entry \"" + text + "\"");
    listed_[id] = read_token(config.file(), "added token " + text, item, false);
    listed_[id].listed_id = id;
  }
}

bool FolderTokens::is_special(const std::string& content) const {
  const auto same = [&](const AddedToken& token) { return token.content == content; };
  return std::ranges::any_of(extra_, same) ||
         std::ranges::any_of(named_, [&](const auto& named) { return same(named.second); });
}

void FolderTokens::read_folder(const fs::path& folder, const fs::path& json_file,
                               const Json& json_list) {
  if (has_list_) return;
  if (const auto map = folder / "special_tokens_map.json"; spec::is_file(map)) {
    const auto config = spec::ConfigReader::read(map);
    read_named(config, true);
    config.finish();
  }
  if (const auto file = folder / "added_tokens.json"; spec::is_file(file)) {
    const Json ids = spec::parse_json(spec::read_text_file(file, kMaxAddedTokensBytes), file);
    if (!ids.is_object()) refuse_tokens(file, "is not a JSON object");
    require_few(file, "it", ids);
    for (const auto& [content, value] : ids.items()) {
      const auto id = read_id(file, "token \"" + content + "\"", value);
      if (content.empty()) refuse_tokens(file, "has an empty token");
      listed_[id] = {.content = content, .normalized = !is_special(content), .listed_id = id};
    }
  }
  if (json_list.is_null()) return;
  if (!json_list.is_array()) refuse_tokens(json_file, "added_tokens is not a list");
  require_few(json_file, "added_tokens", json_list);
  for (std::size_t i = 0; i < json_list.size(); ++i) {
    const auto key = fmt::format("added token {}", i);
    auto token = read_token(json_file, key, json_list[i], false);
    const auto id = read_id(json_file, key, json_list[i].value("id", Json()));
    token.listed_id = id;
    listed_[id] = std::move(token);
  }
}

void FolderTokens::add_implied(const std::vector<std::string>& contents) {
  if (!extra_.empty()) return;
  for (const auto& content : contents)
    extra_.push_back({.content = content, .implied = true});
}

std::string FolderTokens::named(const std::string& key) const {
  const auto found = named_.find(key);
  return found == named_.end() ? "" : found->second.content;
}

std::vector<AddedToken> FolderTokens::in_order() const {
  std::vector<AddedToken> tokens;
  for (const auto& [id, token] : listed_)
    tokens.push_back(token);
  const auto listed = static_cast<std::ptrdiff_t>(tokens.size());
  const auto add = [&](const AddedToken& token) {
    const auto same = [&](const AddedToken& other) { return other.content == token.content; };
    const auto begin = tokens.begin() + listed;
    if (std::any_of(tokens.begin(), begin, same)) return;
    // The last of those that are named beside the list settles the flags.
    const auto known = std::find_if(begin, tokens.end(), same);
    known == tokens.end() ? void(tokens.push_back(token)) : void(*known = token);
  };
  for (const char* key : kKeys)
    if (const auto found = named_.find(key); found != named_.end()) add(found->second);
  for (const AddedToken& token : extra_)
    add(token);
  return tokens;
}

void only_or_null(const spec::ConfigReader& config, const char* key, const nlohmann::json& value) {
  config.harmless({key});
  if (config.has_value(key)) config.only(key, value);
}

void accept_common_settings(const spec::ConfigReader& config) {
  config.only("padding_side", "right");
  config.only("truncation_side", "right");
  config.only("split_special_tokens", false);
  config.harmless({"backend", "clean_up_tokenization_spaces", "from_slow", "is_local",
                   "local_files_only", "max_length", "model_max_length", "name_or_path",
                   "pad_to_multiple_of", "pad_token_type_id", "processor_class",
                   "spaces_between_special_tokens", "special_tokens_map_file", "stride",
                   "tokenizer_file", "truncation_strategy", "use_fast"});
}

}  // namespace troupe::models
