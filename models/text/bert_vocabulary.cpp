#include "models/text/bert_vocabulary.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/text/special_tokens.h"

namespace troupe::models {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxBytes = 64U << 20U;

[[noreturn]] void refuse_bert(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[bert_tokenizer] " + file.string() + ": " + why);
}

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  const std::string text = spec::read_text_file(file, kMaxBytes);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (!lines.back().empty() && lines.back().back() == '\r') lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

/// A tokenizer.json in the one form that BERT's has.
class WordPieceFile {
 public:
  explicit WordPieceFile(const std::filesystem::path& file)
      : file_(file),
        root_(spec::parse_json(spec::read_text_file(file, kMaxBytes), file, kMaxVocabularyValues)) {
    if (!root_.is_object()) refuse_bert(file_, "is not a JSON object");
  }

  std::vector<std::string> pieces() const {
    const Json& model = part("model", "WordPiece");
    std::vector<std::string> pieces;
    const auto vocab = model.find("vocab");
    if (vocab == model.end() || !vocab->is_object())
      refuse_bert(file_, "has no WordPiece vocabulary");
    pieces.resize(vocab->size());
    for (const auto& [piece, id] : vocab->items()) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= pieces.size())
        refuse_bert(file_, "piece \"" + piece + "\" has an id beyond the vocabulary");
      pieces[id.get<std::size_t>()] = piece;
    }
    return pieces;
  }

  Json added_tokens() const { return root_.value("added_tokens", Json()); }

  /// All but the pieces and added tokens, against what the other files say.
  void check(const BertVocabulary& into, const Json& strip_accents) const {
    const Json& model = part("model", "WordPiece");
    only(model, "model", "unk_token", into.tokens.named("unk_token"));
    only(model, "model", "continuing_subword_prefix", "##");
    only(model, "model", "max_input_chars_per_word", 100);
    finish(model, "model",
           {"type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
    const Json& normalizer = part("normalizer", "BertNormalizer");
    only(normalizer, "normalizer", "clean_text", true);
    only(normalizer, "normalizer", "handle_chinese_chars", into.chinese_apart);
    only(normalizer, "normalizer", "strip_accents", strip_accents);
    only(normalizer, "normalizer", "lowercase", into.lower_case);
    finish(normalizer, "normalizer",
           {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    finish(part("pre_tokenizer", "BertPreTokenizer"), "pre_tokenizer", {"type"});
    check_ends(into);
    finish(root_, "file",
           {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
            "post_processor", "decoder", "model"});
  }

 private:
  const Json& part(const char* name, const char* type) const {
    static const Json kNull;
    const auto found = root_.find(name);
    const Json& object = found == root_.end() ? kNull : *found;
    if (!object.is_object() || !object.contains("type") || object["type"] != type)
      refuse_bert(file_, std::string(name) + " is no " + type + ", which is not supported");
    return object;
  }
  void only(const Json& object, const std::string& where, const char* key,
            const Json& value) const {
    const auto found = object.find(key);
    if (found == object.end() || *found == value) return;
    refuse_bert(file_, where + " key \"" + key + "\" = " + found->dump() +
                           " is not supported (here " + value.dump() + ")");
  }
  void finish(const Json& object, const std::string& where,
              const std::set<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      if (!known.contains(key))
        refuse_bert(file_, where + " key \"" + key + "\" = " + value.dump().substr(0, 80) +
                               " is not supported");
    }
  }
  /// Begin token, text, end token.
  void check_ends(const BertVocabulary& into) const {
    const auto found = root_.find("post_processor");
    if (found == root_.end() || found->is_null()) return;
    const Json& ends = *found;
    const std::string begin = into.tokens.named("cls_token");
    const std::string end = into.tokens.named("sep_token");
    const auto at = [](const Json& value, const auto& key) -> Json {
      try {
        return value.at(key);
      } catch (const Json::exception&) {
        return nullptr;
      }
    };
    bool known = false;
    if (at(ends, "type") == "BertProcessing") {
      known = at(at(ends, "cls"), 0) == begin && at(at(ends, "sep"), 0) == end;
    } else if (at(ends, "type") == "TemplateProcessing") {
      const Json single = at(ends, "single");
      const auto token = [&](int place) { return at(at(at(single, place), "SpecialToken"), "id"); };
      known = single.is_array() && single.size() == 3 && token(0) == begin &&
              !at(at(single, 1), "Sequence").is_null() && token(2) == end;
    }
    if (!known)
      refuse_bert(file_, "post_processor " + ends.dump().substr(0, 200) + " is not supported");
  }

  std::filesystem::path file_;
  Json root_;
};

}  // namespace

BertVocabulary read_bert_vocabulary(const std::filesystem::path& folder) {
  BertVocabulary made;
  const auto there = [&](const char* name) { return spec::is_file(folder / name); };
  std::optional<WordPieceFile> json;
  if (there("tokenizer.json") || !there("vocab.txt")) json.emplace(folder / "tokenizer.json");
  made.source = folder / (json ? "tokenizer.json" : "vocab.txt");
  made.pieces = json ? json->pieces() : lines_of(made.source);
  Json strip_accents;
  if (there("tokenizer_config.json")) {
    const auto config = spec::ConfigReader::read(folder / "tokenizer_config.json");
    config.choice_or("tokenizer_class", "BertTokenizer", {"BertTokenizer", "BertTokenizerFast"});
    made.lower_case = config.boolean_or("do_lower_case", true);
    made.chinese_apart = config.boolean_or("tokenize_chinese_chars", true);
    if (const auto strip = config.optional_boolean("strip_accents")) strip_accents = *strip;
    made.tokens.read_config(config);
    config.only("do_basic_tokenize", true);
    config.only("wordpieces_prefix", "##");
    only_or_null(config, "never_split", Json::array());
    only_or_null(config, "init_inputs", Json::array());
    accept_common_settings(config);
    config.finish();
  }
  made.tokens.read_folder(folder, made.source, json ? json->added_tokens() : Json());
  made.strip_accents = strip_accents.is_null() ? made.lower_case : strip_accents.get<bool>();
  if (json) json->check(made, strip_accents);
  return made;
}

}  // namespace troupe::models
