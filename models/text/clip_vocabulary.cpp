#include "models/text/clip_vocabulary.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/text/special_tokens.h"

namespace troupe::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMaxVocabularyBytes = 64U << 20U;
constexpr std::int64_t kMaxId = 1 << 24;
constexpr std::string_view kWords =
    "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|"
    "[^\\s\\p{L}\\p{N}]+";

[[noreturn]] void refuse_clip(const fs::path& file, const std::string& why) {
  throw std::runtime_error("[load_tokenizer] " + file.string() + ": " + why);
}

/// A token as JSON writes it: its text, or an object with flags. Plain text means a special token.
ClipAddedToken read_token(const fs::path& file, const std::string& key, const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  const auto flag = [&](const char* name) {
    const auto found = value.find(name);
    if (found == value.end()) return false;
    if (!found->is_boolean()) refuse_clip(file, key + ": \"" + name + "\" must be true or false");
    return found->get<bool>();
  };
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string() ||
      value["content"].get_ref<const std::string&>().empty()) {
    refuse_clip(file, key + " is not a token");
  }
  if (flag("single_word")) refuse_clip(file, key + ": single_word = true is not supported");
  return {value["content"].get<std::string>(), flag("lstrip"), flag("rstrip"), flag("normalized")};
}

void read_vocabulary(const fs::path& file, const Json& tokens, ClipVocabulary& into) {
  if (!tokens.is_object() || tokens.empty()) refuse_clip(file, "has no vocabulary");
  std::vector<bool> taken;
  for (const auto& [token, id] : tokens.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxId) {
      refuse_clip(file, "token \"" + token + "\" has no id from 0 to " + std::to_string(kMaxId));
    }
    const auto value = id.get<std::size_t>();
    if (value >= taken.size()) taken.resize(value + 1);
    if (taken[value]) refuse_clip(file, "id " + std::to_string(value) + " is given twice");
    taken[value] = true;
    into.vocabulary.emplace(token, static_cast<std::int64_t>(value));
  }
}

void add_merge(const fs::path& file, std::string_view line, ClipVocabulary& into) {
  const auto space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    refuse_clip(file, "merge " + std::to_string(into.merges.size()) + " is not a pair of tokens");
  }
  into.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
}

void read_merges(const fs::path& file, ClipVocabulary& into) {
  const std::string text = spec::read_text_file(file, kMaxVocabularyBytes);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool head = at == 0 && line.starts_with("#version");
    if (!head && !line.empty()) add_merge(file, line, into);
    at = end + 1;
  }
}

/// `tokenizer.json` of the one form that CLIP's has.
class TokenizerFile {
 public:
  explicit TokenizerFile(const fs::path& file) : file_(file) {
    root_ = spec::parse_json(spec::read_text_file(file, kMaxVocabularyBytes), file,
                             kMaxVocabularyValues);
    if (!root_.is_object()) refuse_clip(file, "is not a JSON object");
  }

  void read(ClipVocabulary& into) const {
    check_steps("normalizer", "normalizers", {"NFC", "Replace", "Lowercase"});
    check_steps("pre_tokenizer", "pretokenizers", {"Split", "ByteLevel"});
    const Json& model = member(root_, "model");
    only(model, "type", "BPE");
    only(model, "end_of_word_suffix", std::string(kEndOfWord));
    for (const char* key : {"dropout", "byte_fallback", "ignore_merges", "fuse_unk"}) {
      if (const Json& value = member(model, key); !value.is_null() && value != false) {
        refuse_clip(file_, std::string("model key \"") + key + "\" = " + value.dump() +
                               " is not supported");
      }
    }
    if (const Json& prefix = member(model, "continuing_subword_prefix");
        !prefix.is_null() && prefix != "") {
      refuse_clip(file_, "model key \"continuing_subword_prefix\" = " + prefix.dump() +
                             " is not supported");
    }
    read_vocabulary(file_, member(model, "vocab"), into);
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) refuse_clip(file_, "model has no list of merges");
    for (const Json& merge : merges) {
      if (merge.is_string()) {
        add_merge(file_, merge.get_ref<const std::string&>(), into);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        into.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        refuse_clip(file_,
                    "merge " + std::to_string(into.merges.size()) + " is not a pair of tokens");
      }
    }
  }

  std::vector<ClipAddedToken> added_tokens() const {
    std::vector<ClipAddedToken> tokens;
    const Json& list = member(root_, "added_tokens");
    if (list.is_null()) return tokens;
    if (!list.is_array() || list.size() > kMaxAddedTokens)
      refuse_clip(file_,
                  "added_tokens is not a list of at most " + std::to_string(kMaxAddedTokens));
    for (const Json& item : list)
      tokens.push_back(read_token(file_, "added token " + std::to_string(tokens.size()), item));
    return tokens;
  }

 private:
  static const Json& member(const Json& object, const char* key) {
    static const Json kNull;
    if (!object.is_object()) return kNull;
    const auto it = object.find(key);
    return it == object.end() ? kNull : *it;
  }
  void only(const Json& object, const char* key, const std::string& value) const {
    const Json& found = member(object, key);
    if (found != value) {
      refuse_clip(file_, "model key \"" + std::string(key) + "\" = " + found.dump() +
                             " is not supported (CLIP has \"" + value + "\")");
    }
  }
  void check_steps(const char* key, const char* list_key,
                   const std::vector<std::string>& types) const {
    const Json& steps = member(member(root_, key), list_key);
    const auto refuse = [&](const std::string& what) {
      refuse_clip(file_, std::string(key) + " " + what + " is not supported");
    };
    if (!steps.is_array() || steps.size() != types.size()) {
      refuse(member(root_, key).dump().substr(0, 200));
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
      const Json& type = member(steps[i], "type");
      if (type != types[i]) refuse(type.dump());
      const Json& regex = member(member(steps[i], "pattern"), "Regex");
      if (types[i] == "Replace" && (regex != "\\s+" || member(steps[i], "content") != " ")) {
        refuse(steps[i].dump());
      }
      if (types[i] == "Split" && (regex != kWords || member(steps[i], "invert") != true)) {
        refuse(steps[i].dump());
      }
      if (types[i] == "ByteLevel" && member(steps[i], "add_prefix_space") != false) {
        refuse(steps[i].dump());
      }
    }
  }

  fs::path file_;
  Json root_;
};

std::vector<ClipAddedToken> added_in_config(const spec::ConfigReader& config) {
  std::vector<ClipAddedToken> tokens;
  const Json& list = config.raw("added_tokens_decoder");
  if (!list.is_object()) config.refuse("added_tokens_decoder", "must be an object");
  require_few(config, "added_tokens_decoder", list);
  for (const auto& [id, item] : list.items())
    tokens.push_back(read_token(config.file(), "added token " + id, item));
  return tokens;
}

void accept_harmless(const spec::ConfigReader& config) {
  config.only("do_lower_case", true);
  config.only("add_prefix_space", false);
  accept_common_settings(config);
  config.harmless({"tokenizer_class", "errors", "added_tokens_decoder"});
  config.finish();
}

}  // namespace

ClipVocabulary read_clip_vocabulary(const fs::path& folder) {
  ClipVocabulary result;
  std::vector<ClipAddedToken>& added = result.added_tokens;
  const auto there = [&](const char* name) { return fs::is_regular_file(folder / name); };
  std::optional<TokenizerFile> json;
  if (there("tokenizer.json")) {
    result.source = folder / "tokenizer.json";
    json.emplace(result.source);
    json->read(result);
  } else if (there("vocab.json") && there("merges.txt")) {
    result.source = folder / "vocab.json";
    read_vocabulary(result.source,
                    spec::parse_json(spec::read_text_file(result.source, kMaxVocabularyBytes),
                                     result.source, kMaxVocabularyValues),
                    result);
    read_merges(folder / "merges.txt", result);
  } else {
    refuse_clip(folder, "has neither tokenizer.json nor vocab.json and merges.txt");
  }

  const std::array<std::pair<const char*, std::string*>, 4> names = {{{"bos_token", &result.bos},
                                                                      {"eos_token", &result.eos},
                                                                      {"unk_token", &result.unk},
                                                                      {"pad_token", &result.pad}}};
  std::array<ClipAddedToken, 4> named;
  for (std::size_t i = 0; i < names.size(); ++i)
    named[i] = {*names[i].second};
  std::vector<ClipAddedToken> others;
  const auto read_named = [&](const spec::ConfigReader& from) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!from.has_value(names[i].first)) {
        from.harmless({names[i].first});
        continue;
      }
      named[i] = read_token(from.file(), names[i].first, from.raw(names[i].first));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      for (const std::string& token : token_texts(from, key)) {
        if (!result.vocabulary.contains(token))
          from.refuse(key, "has \"" + token + "\", which the vocabulary has not");
        others.push_back({token});
      }
    }
  };
  bool listed = false;
  if (there("tokenizer_config.json")) {
    const auto config = spec::ConfigReader::read(folder / "tokenizer_config.json");
    config.choice_or("tokenizer_class", "CLIPTokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"});
    read_named(config);
    listed = config.has_value("added_tokens_decoder");
    if (listed) added = added_in_config(config);
    if (config.has_value("model_max_length")) {
      // Without a limit, transformers writes 1e30.
      const double length = config.number("model_max_length");
      if (length >= 1 && length <= kMaxId)
        result.model_max_length = static_cast<std::int64_t>(length);
    }
    accept_harmless(config);
  }
  if (!listed && there("special_tokens_map.json")) {
    const auto map = spec::ConfigReader::read(folder / "special_tokens_map.json");
    read_named(map);
    map.finish();
  }
  if (!listed && json) added = json->added_tokens();

  const std::vector<ClipAddedToken> first = added;
  for (std::size_t i = 0; i < names.size(); ++i) {
    *names[i].second = named[i].content;
    const auto same = [&](const ClipAddedToken& token) {
      return token.content == named[i].content;
    };
    if (std::ranges::any_of(first, same)) continue;
    if (std::find(named.begin(), named.begin() + i, named[i]) != named.begin() + i) continue;
    // The last of those that are named beside the list settles the flags.
    std::erase_if(added, same);
    added.push_back(named[i]);
  }
  for (const ClipAddedToken& token : others) {
    const auto same = [&](const ClipAddedToken& other) { return other.content == token.content; };
    if (std::ranges::none_of(added, same)) added.push_back(token);
  }
  for (const ClipAddedToken& token : added) {
    if (!result.vocabulary.contains(token.content)) {
      refuse_clip(result.source, "has no token \"" + token.content + "\"");
    }
  }
  return result;
}

}  // namespace troupe::models
