#include "models/text/clip_vocabulary.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/spec/json_text.h"

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

/// A `tokenizer.json` in the one form that CLIP's has.
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

  const Json& added_tokens() const { return member(root_, "added_tokens"); }

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

void accept_harmless(const spec::ConfigReader& config) {
  config.only("do_lower_case", true);
  config.only("add_prefix_space", false);
  accept_common_settings(config);
  config.harmless({"tokenizer_class", "errors"});
  config.finish();
}

}  // namespace

ClipVocabulary read_clip_vocabulary(const fs::path& folder) {
  ClipVocabulary result;
  const auto there = [&](const char* name) { return spec::is_file(folder / name); };
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
  if (there("tokenizer_config.json")) {
    const auto config = spec::ConfigReader::read(folder / "tokenizer_config.json");
    config.choice_or("tokenizer_class", "CLIPTokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"});
    result.tokens.read_config(config);
    if (config.has_value("model_max_length")) {
      // For no limit, transformers writes 1e30.
      const double length = config.number("model_max_length");
      if (length >= 1 && length <= kMaxId)
        result.model_max_length = static_cast<std::int64_t>(length);
    }
    accept_harmless(config);
  }
  result.tokens.read_folder(folder, result.source, json ? json->added_tokens() : Json());
  if (const auto unk = result.tokens.named("unk_token"); !result.vocabulary.contains(unk))
    refuse_clip(result.source, "has no token \"" + unk + "\"");
  return result;
}

}  // namespace troupe::models
