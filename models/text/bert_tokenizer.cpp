#include "models/text/bert_tokenizer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/text/pattern.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// Contents of a BERT tokenizer's folder: pieces, rules and special tokens.
struct BertVocabulary {
  /// The file that the pieces came from.
  std::filesystem::path source;
  /// Pieces by id.
  std::vector<std::string> pieces;
  bool lower_case = true, strip_accents = true, chinese_apart = true;
  FolderTokens tokens{{{"cls_token", "[CLS]"},
                       {"sep_token", "[SEP]"},
                       {"pad_token", "[PAD]"},
                       {"unk_token", "[UNK]"},
                       {"mask_token", "[MASK]"}}};
};

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

/// Reads tokenizer.json with a WordPiece model where it is there, as transformers does, else
/// vocab.txt; tokenizer_config.json, and special_tokens_map.json and added_tokens.json where that
/// lists no added tokens.
/// Throws std::runtime_error naming file, key and value for all that is not supported.
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

/// Most letters of a word; a longer word is unknown as a whole.
constexpr std::size_t kLongestWord = 100;

bool is_chinese(char32_t c) {
  return (0x4E00 <= c && c <= 0x9FFF) || (0x3400 <= c && c <= 0x4DBF) ||
         (0x20000 <= c && c <= 0x2A6DF) || (0x2A700 <= c && c <= 0x2B73F) ||
         (0x2B740 <= c && c <= 0x2B81F) || (0x2B920 <= c && c <= 0x2CEAF) ||
         (0xF900 <= c && c <= 0xFAFF) || (0x2F800 <= c && c <= 0x2FA1F);
}

/// Control characters go, white space becomes a space.
std::string cleaned(std::string_view text) {
  static const Pattern controls("[\\x{0}\\x{FFFD}]|(?![\\t\\n\\r])\\p{C}");
  static const Pattern spaces("[\\t\\n\\r\\p{Z}\\x{85}]", " ");
  return spaces.replace_all(controls.replace_all(std::string(text)));
}

std::string with_chinese_apart(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool apart = is_chinese(point.value);
    if (apart) out += ' ';
    append_utf8(out, point.value);
    if (apart) out += ' ';
    at += point.bytes;
  }
  return out;
}

std::string without_accents(const std::string& text) {
  static const Pattern accents("\\p{Mn}");
  return accents.replace_all(tokenizers_nfd(text));
}

}  // namespace

struct BertTokenizer::Impl {
  explicit Impl(BertVocabulary from);

  std::string prepared(std::string_view text) const;
  void add_pieces(std::string_view word, std::vector<std::int64_t>& ids) const;
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string text_of(const std::vector<std::int64_t>& ids) const;
  std::int64_t own_id(const std::string& piece) const {
    const auto found = ids.find(piece);
    return found == ids.end() ? -1 : found->second;
  }

  std::vector<std::string> pieces;
  std::unordered_map<std::string, std::int64_t> ids;
  bool lower_case, strip_accents, chinese_apart;
  AddedVocabulary added;
  std::int64_t begin, end, pad, unknown;
};

BertTokenizer::Impl::Impl(BertVocabulary from)
    : pieces(std::move(from.pieces)),
      lower_case(from.lower_case),
      strip_accents(from.strip_accents),
      chinese_apart(from.chinese_apart) {
  for (std::size_t id = 0; id < pieces.size(); ++id)
    ids[pieces[id]] = static_cast<std::int64_t>(id);
  added = AddedVocabulary(from.tokens.in_order(),
                          {.size = static_cast<std::int64_t>(ids.size()),
                           .id = [this](const std::string& piece) { return own_id(piece); },
                           .normalize = [this](std::string_view text) { return prepared(text); }},
                          from.source.parent_path());
  begin = added.need(from.tokens.named("cls_token"));
  end = added.need(from.tokens.named("sep_token"));
  pad = added.need(from.tokens.named("pad_token"));
  unknown = added.need(from.tokens.named("unk_token"));
}

BertTokenizer::BertTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

BertTokenizer BertTokenizer::load(const std::filesystem::path& folder) {
  return BertTokenizer(std::make_shared<Impl>(read_bert_vocabulary(folder)));
}

/// The text, cleaned, in lower case and without accents as far as the folder says so.
std::string BertTokenizer::Impl::prepared(std::string_view text) const {
  std::string normal = cleaned(text);
  if (chinese_apart) normal = with_chinese_apart(normal);
  if (strip_accents) normal = without_accents(normal);
  if (lower_case) normal = lower_case_by_letter(normal);
  return normal;
}

void BertTokenizer::Impl::add_pieces(std::string_view word, std::vector<std::int64_t>& into) const {
  std::vector<std::size_t> ends;  // of each character
  for (std::size_t at = 0; at < word.size();) {
    at += code_point_at(word, at).bytes;
    ends.push_back(at);
  }
  if (ends.size() > kLongestWord) {
    into.push_back(unknown);
    return;
  }
  std::vector<std::int64_t> own;
  std::size_t from = 0;
  while (from < word.size()) {
    auto last = ends.rbegin();
    std::int64_t found = -1;
    for (; last != ends.rend() && *last > from; ++last) {
      found = own_id((from > 0 ? "##" : "") + std::string(word.substr(from, *last - from)));
      if (found >= 0) break;
    }
    if (found < 0) {
      into.push_back(unknown);
      return;
    }
    own.push_back(found);
    from = *last;
  }
  into.insert(into.end(), own.begin(), own.end());
}

std::vector<std::int64_t> BertTokenizer::Impl::encode(std::string_view text) const {
  static const Pattern parts(
      "[\\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}]|\\p{P}|"
      "[^ \\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}\\p{P}"
      "\\p{Z}]+");
  std::vector<std::int64_t> made{begin};
  added.split(
      valid_utf8(text),
      [&](std::string_view some) {
        for (const auto word : parts.find_all(some))
          add_pieces(word, made);
      },
      [&](std::int64_t id) { made.push_back(id); });
  made.push_back(end);
  return made;
}

std::string BertTokenizer::Impl::text_of(const std::vector<std::int64_t>& of) const {
  std::string text;
  for (const auto id : of) {
    const std::string beyond = added.content(id);
    const std::string& piece = beyond.empty() ? pieces.at(static_cast<std::size_t>(id)) : beyond;
    if (piece.starts_with("##")) {
      text += piece.substr(2);
    } else {
      text += (text.empty() ? "" : " ") + piece;
    }
  }
  return text;
}

std::vector<std::int64_t> BertTokenizer::encode(std::string_view text) const {
  return impl_->encode(text);
}

Tokenized BertTokenizer::tokenize(const std::vector<std::string>& prompts,
                                  std::int64_t max_length) const {
  if (max_length < 2)
    throw std::invalid_argument("[bert_tokenizer] max_length = " + std::to_string(max_length) +
                                ", at least 2 is needed");
  const RowRule rule{.end = {impl_->end},
                     .pad = impl_->pad,
                     .least = 2,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return impl_->text_of(ids); }};
  return make_rows(rule, prompts, max_length);
}

std::int64_t BertTokenizer::vocab_size() const {
  return std::max(own_vocab_size(), impl_->added.end());
}

std::int64_t BertTokenizer::own_vocab_size() const {
  return std::ssize(impl_->pieces);
}

const AddedVocabulary& BertTokenizer::added() const {
  return impl_->added;
}

}  // namespace troupe::models
