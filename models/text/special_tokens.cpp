#include "models/text/special_tokens.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "base/format.h"
#include "models/spec/json_text.h"
#include "models/spec/lora_spec.h"
#include "models/text/unicode.h"

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

/// Bytes of a prompt whose words are written out, at most: words that have each other as parts
/// multiply, and each is looked for at each place.
constexpr std::size_t kMostWrittenOut = 64U << 10U;

bool ends_in_word(std::string_view text) {
  std::size_t at = text.size();
  while (at > 0 && (static_cast<unsigned char>(text[at - 1]) & 0xC0U) == 0x80U)
    --at;
  return at > 0 && is_word_character(code_point_at(text, at - 1).value);
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_word_character(code_point_at(text, 0).value);
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

AddedVocabulary::AddedVocabulary(const std::vector<AddedToken>& tokens, Model model,
                                 const std::filesystem::path& folder)
    : model_(std::move(model)), folder_(folder), end_(model_.size) {
  for (const AddedToken& token : tokens) {
    const std::int64_t own = model_.id(token.content);
    const std::int64_t id = own >= 0 ? own : end_;
    if (token.listed_id && *token.listed_id != id) {
      throw std::runtime_error(fmt::format(
          "[load_tokenizer] {}: added token \"{}\" is listed with id {}, but comes to {}{}",
          folder.string(), token.content, *token.listed_id, id,
          own >= 0 ? " in the vocabulary" : ", the next after those before it"));
    }
    end_ = std::max(end_, id + 1);
    ids_[token.content] = id;
    if (own < 0) contents_[id] = token.content;
    if (own < 0 && token.implied) lacking_.insert(token.content);
    Placed placed{token, id, token.normalized ? model_.normalize(token.content) : token.content};
    if (!placed.looked_for.empty())
      (token.normalized ? normalized_ : as_given_).push_back(std::move(placed));
  }
  for (auto* list : {&as_given_, &normalized_}) {
    std::ranges::stable_sort(*list, std::ranges::greater{},
                             [](const Placed& placed) { return placed.looked_for.size(); });
  }
  for (const auto& [content, id] : ids_) {
    std::string all = content;
    for (int i = 1; ids_.contains(fmt::format("{}_{}", content, i)); ++i)
      all += fmt::format(" {}_{}", content, i);
    if (all != content) vectors_[id] = {content, all};
  }
}

void AddedVocabulary::cut_out(std::string_view all, const std::vector<Placed>& tokens,
                              const std::function<void(std::string_view)>& on_text,
                              const std::function<void(std::int64_t)>& on_token) {
  std::size_t begin = 0;
  std::size_t space = 0;  // where the white space that ends at `at` begins
  for (std::size_t at = 0; at < all.size();) {
    const auto rest = all.substr(at);
    const auto found = std::ranges::find_if(
        tokens, [&](const Placed& token) { return rest.starts_with(token.looked_for); });
    const std::size_t length =
        found == tokens.end() ? code_point_at(all, at).bytes : found->looked_for.size();
    const bool is_token = found != tokens.end() &&
                          !(found->token.single_word && (ends_in_word(all.substr(0, at)) ||
                                                         begins_with_word(rest.substr(length))));
    if (!is_token) {
      const bool white = found == tokens.end() && is_white_space(code_point_at(all, at).value);
      at += length;
      if (!white) space = at;
      continue;
    }
    const std::size_t end = found->token.lstrip ? std::max(space, begin) : at;
    if (end > begin) on_text(all.substr(begin, end - begin));
    on_token(found->id);
    at += length;
    while (found->token.rstrip && at < all.size()) {
      const CodePoint point = code_point_at(all, at);
      if (!is_white_space(point.value)) break;
      at += point.bytes;
    }
    begin = space = at;
  }
  if (begin < all.size()) on_text(all.substr(begin));
}

void AddedVocabulary::split(std::string_view text,
                            const std::function<void(std::string_view)>& on_text,
                            const std::function<void(std::int64_t)>& on_token) const {
  cut_out(
      text, as_given_,
      [&](std::string_view some) {
        cut_out(model_.normalize(some), normalized_, on_text, on_token);
      },
      on_token);
}

std::int64_t AddedVocabulary::id(const std::string& content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? model_.id(content) : found->second;
}

std::int64_t AddedVocabulary::need(const std::string& content) const {
  if (lacking_.contains(content) || id(content) < 0) {
    throw std::runtime_error(fmt::format("[load_tokenizer] {}: the vocabulary has no \"{}\"",
                                         folder_.string(), content));
  }
  return id(content);
}

std::string AddedVocabulary::content(std::int64_t id) const {
  const auto found = contents_.find(id);
  return found == contents_.end() ? "" : found->second;
}

std::string AddedVocabulary::beyond(std::int64_t rows) const {
  for (const auto* list : {&as_given_, &normalized_})
    for (const Placed& placed : *list)
      if (placed.id >= rows && !placed.token.implied) return placed.token.content;
  return "";
}

std::string AddedVocabulary::with_all_vectors(std::string text) const {
  if (vectors_.empty()) return text;
  std::set<std::int64_t> found;
  split(
      text, [](std::string_view) {}, [&](std::int64_t id) { found.insert(id); });
  for (const std::int64_t id : found) {
    const auto more = vectors_.find(id);
    if (more == vectors_.end()) continue;
    const auto& [token, all] = more->second;
    std::string written;
    std::size_t from = 0;
    for (auto at = text.find(token); at != std::string::npos; at = text.find(token, from)) {
      written.append(text, from, at - from).append(all);
      from = at + token.size();
      if (written.size() > kMostWrittenOut)
        throw std::runtime_error(
            fmt::format("[tokenizer] {}: with all vectors of its learned words a prompt has more "
                        "than {} bytes: "
                        "write {} less often",
                        folder_.string(), kMostWrittenOut, spec::in_quotes(token)));
    }
    text = written.append(text, from);
  }
  return text;
}

}  // namespace troupe::models
