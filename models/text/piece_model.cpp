#include "models/text/piece_model.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "models/spec/json_text.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// A unigram language model over pieces: the split of a text whose pieces' scores add up highest.
/// Ties and unknown characters go as in the `tokenizers` library, so that ids agree.
class Unigram {
 public:
  struct Piece {
    std::string text;
    double score = 0;
  };

  /// `unk_id` is an index of `pieces`. Throws std::invalid_argument if it is not.
  Unigram(std::vector<Piece> pieces, std::int64_t unk_id);
  Unigram(const Unigram&) = delete;
  Unigram& operator=(const Unigram&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  const std::string& piece(std::int64_t id) const { return pieces_.at(id).text; }
  /// -1 if there is no such piece.
  std::int64_t id(std::string_view piece) const;

  /// Appends the ids of valid UTF-8 `text`; a run of unknown characters is one unknown.
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const;

 private:
  std::vector<Piece> pieces_;
  std::unordered_map<std::string_view, std::int64_t> ids_;
  std::int64_t unk_id_;
  double unk_score_;
  std::size_t longest_piece_ = 0;
};

/// Difference between the scores of the worst piece and of an unknown character.
constexpr double kUnknownPenalty = 10.0;
constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

struct Ending {
  std::size_t begin = kNowhere;
  double score = 0;
  bool unknown = false;

  void offer(std::size_t from, double candidate, bool is_unknown) {
    if (begin == kNowhere || candidate > score) *this = {from, candidate, is_unknown};
  }
};

Unigram::Unigram(std::vector<Piece> pieces, std::int64_t unk_id)
    : pieces_(std::move(pieces)), unk_id_(unk_id) {
  if (unk_id < 0 || unk_id >= size()) {
    throw std::invalid_argument("[unigram] unk_id = " + std::to_string(unk_id) + " is not one of " +
                                std::to_string(size()) + " pieces");
  }
  double least = std::numeric_limits<double>::infinity();
  ids_.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    ids_[pieces_[i].text] = static_cast<std::int64_t>(i);
    least = std::min(least, pieces_[i].score);
    longest_piece_ = std::max(longest_piece_, pieces_[i].text.size());
  }
  unk_score_ = least - kUnknownPenalty;
}

std::int64_t Unigram::id(std::string_view piece) const {
  const auto it = ids_.find(piece);
  return it == ids_.end() ? -1 : it->second;
}

void Unigram::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::vector<Ending> endings(text.size() + 1);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t character = code_point_at(text, begin).bytes;
    const double score = endings[begin].score;
    const std::size_t longest = std::min(longest_piece_, text.size() - begin);
    bool character_known = false;
    for (std::size_t length = character; length <= longest;) {
      const std::int64_t found = id(text.substr(begin, length));
      if (found >= 0) {
        endings[begin + length].offer(begin, score + pieces_[found].score, found == unk_id_);
        character_known = character_known || length == character;
      }
      if (begin + length == text.size()) break;
      length += code_point_at(text, begin + length).bytes;
    }
    if (!character_known) endings[begin + character].offer(begin, score + unk_score_, true);
    begin += character;
  }

  std::vector<std::int64_t> reversed;
  for (std::size_t end = text.size(); end > 0;) {
    std::size_t begin = endings[end].begin;
    if (endings[end].unknown) {
      while (begin > 0 && endings[begin].unknown)
        begin = endings[begin].begin;
    }
    const std::int64_t found = id(text.substr(begin, end - begin));
    reversed.push_back(found >= 0 ? found : unk_id_);
    end = begin;
  }
  ids.insert(ids.end(), reversed.rbegin(), reversed.rend());
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;)
    value = value << 8U | static_cast<unsigned char>(bytes[i]);
  return value;
}

// A unit of the double array packs its label, a leaf flag and the offset to its children.
bool has_leaf(std::uint32_t unit) {
  return (unit >> 8U & 1U) != 0;
}
std::uint32_t label(std::uint32_t unit) {
  return unit & (1U << 31U | 0xFFU);
}
std::uint32_t offset(std::uint32_t unit) {
  return (unit >> 10U) << ((unit & 1U << 9U) >> 6U);
}
std::uint32_t leaf_value(std::uint32_t unit) {
  return unit & ((1U << 31U) - 1);
}

constexpr std::uint64_t kMaxModelBytes = 256U << 20U;

/// A space mark in the text itself counts as a space, as it does in transformers.
std::string without_marks(std::string_view text) {
  std::string result;
  for (auto at = text.find(kSpaceMark); at != std::string_view::npos; at = text.find(kSpaceMark)) {
    result.append(text.substr(0, at)).append(" ");
    text.remove_prefix(at + kSpaceMark.size());
  }
  return result.append(text);
}

/// The next field of a protocol buffer: its number, and its bytes if it has any of its own. False
/// at the end and where the rest is damaged, which the library itself reports.
bool next_field(std::string_view& rest, std::uint64_t& number, std::string_view& bytes) {
  const auto varint = [&](std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(rest.front());
      rest.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 127U) << shift;
      if (byte < 128) return true;
    }
    return false;
  };
  std::uint64_t tag = 0;
  std::uint64_t length = 0;
  if (!varint(tag)) return false;
  number = tag >> 3U;
  bytes = {};
  switch (tag & 7U) {
    case 0:
      return varint(length);
    case 1:
      length = 8;
      break;
    case 2:
      if (!varint(length)) return false;
      break;
    case 5:
      length = 4;
      break;
    default:
      return false;
  }
  if (length > rest.size()) return false;
  bytes = rest.substr(0, length);
  rest.remove_prefix(length);
  return true;
}

/// The library ends the process over a piece with a zero byte in it.
bool has_zero_in_piece(std::string_view model) {
  constexpr std::uint64_t kPieces = 1;
  constexpr std::uint64_t kText = 1;
  std::uint64_t number = 0;
  std::string_view piece;
  while (next_field(model, number, piece)) {
    if (number != kPieces) continue;
    std::string_view text;
    while (next_field(piece, number, text)) {
      if (number == kText && text.find('\0') != std::string_view::npos) return true;
    }
  }
  return false;
}

/// The table by which text is brought into a normal form; empty where there is none.
std::string_view charsmap_of(std::string_view model) {
  constexpr std::uint64_t kNormalizer = 3;
  constexpr std::uint64_t kCharsmap = 2;
  std::string_view found, spec;
  std::uint64_t number = 0;
  while (next_field(model, number, spec)) {
    if (number != kNormalizer) continue;
    std::string_view value;
    while (next_field(spec, number, value))
      if (number == kCharsmap) found = value;
  }
  return found;
}

class SentencePieceModel final : public PieceModel {
 public:
  explicit SentencePieceModel(const std::filesystem::path& file) : file_(file) {
    const std::string bytes = spec::read_text_file(file, kMaxModelBytes);
    if (has_zero_in_piece(bytes)) {
      throw std::runtime_error("[load_tokenizer] " + file.string() +
                               ": is not a sentencepiece model: a piece with a zero byte");
    }
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (const auto map = charsmap_of(bytes); status.ok() && !map.empty())
      charsmap_.emplace(std::string(map), file.string());
    if (!status.ok() || processor_.GetPieceSize() <= 0) {
      throw std::runtime_error("[load_tokenizer] " + file.string() +
                               ": is not a sentencepiece model: " + status.ToString());
    }
  }

  std::string normalize(std::string_view text) const override {
    return charsmap_ ? charsmap_->normalize(text) : std::string(text);
  }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    std::vector<int> pieces;
    const auto status = processor_.Encode(without_marks(text), &pieces);
    if (!status.ok()) {
      throw std::runtime_error("[tokenize] " + file_.string() + ": " + status.ToString());
    }
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  std::int64_t id(std::string_view piece) const override {
    const int found = processor_.PieceToId(piece);
    return processor_.IdToPiece(found) == piece ? found : -1;
  }

  std::string piece(std::int64_t id) const override {
    return processor_.IdToPiece(static_cast<int>(id));
  }

  std::int64_t size() const override { return processor_.GetPieceSize(); }

 private:
  std::filesystem::path file_;
  std::optional<Charsmap> charsmap_;
  sentencepiece::SentencePieceProcessor processor_;
};

using Json = nlohmann::json;

constexpr std::uint64_t kMaxTokenizerBytes = 256U << 20U;
/// Most bytes of a piece: at each place of a text all lengths up to the longest piece's are tried.
constexpr std::size_t kMaxPieceBytes = 512;

/// Splits at white space, marks the beginning of every word, then runs the unigram model on each.
class UnigramModel final : public PieceModel {
 public:
  UnigramModel(std::vector<Unigram::Piece> pieces, std::int64_t unk_id,
               std::optional<Charsmap> charsmap)
      : unigram_(std::move(pieces), unk_id), charsmap_(std::move(charsmap)) {}

  std::string normalize(std::string_view text) const override {
    return charsmap_ ? charsmap_->normalize(text) : std::string(text);
  }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    std::string word;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      if (is_white_space(point.value)) {
        encode_word(word, ids);
        word.clear();
      } else {
        append_utf8(word, point.value);
      }
      at += point.bytes;
    }
    encode_word(word, ids);
  }

  std::int64_t id(std::string_view piece) const override { return unigram_.id(piece); }
  std::string piece(std::int64_t id) const override { return unigram_.piece(id); }
  std::int64_t size() const override { return unigram_.size(); }

 private:
  void encode_word(std::string_view word, std::vector<std::int64_t>& ids) const {
    if (word.empty()) return;
    std::string marked;
    if (!word.starts_with(kSpaceMark)) marked = kSpaceMark;
    marked += word;
    for (std::size_t begin = 0; begin < marked.size();) {
      const std::size_t end =
          std::min(marked.find(kSpaceMark, begin + kSpaceMark.size()), marked.size());
      unigram_.encode(std::string_view(marked).substr(begin, end - begin), ids);
      begin = end;
    }
  }

  Unigram unigram_;
  std::optional<Charsmap> charsmap_;
};

class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(const std::filesystem::path& file) : file_(file.string()) {
    root_ = spec::parse_json(spec::read_text_file(file, kMaxTokenizerBytes), file,
                             kMaxVocabularyValues);
    if (!root_.is_object()) damaged("is not a JSON object");
  }

  TokenizerJson read() const {
    check_pre_tokenizer();
    check_post_processor();
    TokenizerJson result;
    result.model = read_model(read_normalizer());
    result.added_tokens = member(root_, "added_tokens");
    return result;
  }

 private:
  [[noreturn]] void damaged(const std::string& why) const {
    throw std::runtime_error("[load_tokenizer] " + file_ + ": " + why);
  }
  [[noreturn]] void unsupported(const std::string& what, const std::string& name) const {
    throw UnsupportedTokenizer("[load_tokenizer] " + file_ + ": " + what + " \"" + name +
                               "\" is not supported");
  }
  const Json& member(const Json& object, const char* key) const {
    static const Json kNull;
    const auto it = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && it != object.end() ? *it : kNull;
  }
  std::string text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_string()) damaged(std::string("key \"") + key + "\" must be a string");
    return value.get<std::string>();
  }
  bool flag(const Json& object, const char* key, bool fallback) const {
    const Json& value = member(object, key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) damaged(std::string("key \"") + key + "\" must be true or false");
    return value.get<bool>();
  }
  /// Returns the members of a Sequence, or the one element itself; empty for null.
  std::vector<Json> flat(const Json& value, const char* list_key) const {
    if (value.is_null()) return {};
    if (text(value, "type") != "Sequence") return {value};
    const Json& list = member(value, list_key);
    if (!list.is_array()) damaged(std::string("key \"") + list_key + "\" must be a list");
    return list.get<std::vector<Json>>();
  }

  std::optional<Charsmap> read_normalizer() const {
    std::optional<Charsmap> charsmap;
    for (const Json& normalizer : flat(member(root_, "normalizer"), "normalizers")) {
      const std::string type = text(normalizer, "type");
      if (type != "Precompiled" || charsmap) unsupported("normalizer", type);
      if (member(normalizer, "precompiled_charsmap").is_null()) continue;
      const std::string blob = base64(text(normalizer, "precompiled_charsmap"));
      if (!blob.empty()) charsmap.emplace(blob, file_);
    }
    return charsmap;
  }

  void check_pre_tokenizer() const {
    bool metaspace = false;
    for (const Json& step : flat(member(root_, "pre_tokenizer"), "pretokenizers")) {
      const std::string type = text(step, "type");
      if (type == "WhitespaceSplit" && !metaspace) continue;
      if (type != "Metaspace" || metaspace) unsupported("pre_tokenizer", type);
      metaspace = true;
      if (text(step, "replacement") != kSpaceMark) {
        unsupported("Metaspace replacement", text(step, "replacement"));
      }
      const Json& scheme = member(step, "prepend_scheme");
      if (!scheme.is_null() && scheme != "always") {
        unsupported("Metaspace prepend_scheme", scheme.dump());
      }
      if (!flag(step, "add_prefix_space", true)) unsupported("Metaspace add_prefix_space", "false");
      if (!flag(step, "split", true)) unsupported("Metaspace split", "false");
    }
    if (!metaspace) unsupported("pre_tokenizer", "without Metaspace");
  }

  void check_post_processor() const {
    const Json& processor = member(root_, "post_processor");
    if (processor.is_null()) return;
    const std::string type = text(processor, "type");
    if (type != "TemplateProcessing") unsupported("post_processor", type);
    const Json& single = member(processor, "single");
    if (!single.is_array() || single.size() != 2 || !single[0].contains("Sequence") ||
        !single[1].contains("SpecialToken")) {
      unsupported("post_processor", "TemplateProcessing other than text, end token");
    }
  }

  std::unique_ptr<PieceModel> read_model(std::optional<Charsmap> charsmap) const {
    const Json& model = member(root_, "model");
    const Json& type = member(model, "type");
    if (type.is_string() && type != "Unigram") unsupported("model", type.get<std::string>());
    if (flag(model, "byte_fallback", false)) unsupported("Unigram byte_fallback", "true");
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_array()) damaged("model has no vocab list");
    std::vector<Unigram::Piece> pieces;
    pieces.reserve(vocab.size());
    for (const Json& item : vocab) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number()) {
        damaged("vocab entry " + std::to_string(pieces.size()) +
                " is not a pair of piece and score");
      }
      if (item[0].get_ref<const std::string&>().size() > kMaxPieceBytes) {
        damaged("vocab entry " + std::to_string(pieces.size()) + " is longer than " +
                std::to_string(kMaxPieceBytes) + " bytes");
      }
      pieces.push_back({item[0].get<std::string>(), item[1].get<double>()});
    }
    const Json& unk = member(model, "unk_id");
    if (!unk.is_number_unsigned() || unk.get<std::uint64_t>() >= pieces.size()) {
      damaged("unk_id " + unk.dump() + " is not one of " + std::to_string(pieces.size()) +
              " pieces");
    }
    return std::make_unique<UnigramModel>(std::move(pieces), unk.get<std::int64_t>(),
                                          std::move(charsmap));
  }

  std::string base64(const std::string& encoded) const {
    static constexpr std::string_view kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    std::uint32_t bits = 0;
    int count = 0;
    for (char c : encoded.substr(0, encoded.find('='))) {
      const auto value = kAlphabet.find(c);
      if (value == std::string_view::npos) damaged("precompiled_charsmap is not base64");
      bits = bits << 6U | static_cast<std::uint32_t>(value);
      count += 6;
      if (count >= 8) {
        count -= 8;
        bytes += static_cast<char>(bits >> count & 0xFFU);
      }
    }
    return bytes;
  }

  std::string file_;
  Json root_;
};

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& file) {
  const auto refuse = [&file](const std::string& why) {
    throw std::runtime_error("[load_tokenizer] " + file + ": precompiled charsmap " + why);
  };
  if (blob.size() < 4)
    refuse("has " + std::to_string(blob.size()) + " bytes, at least 4 are needed");
  const std::uint32_t trie_bytes = little_endian(blob);
  blob.remove_prefix(4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size()) {
    refuse("says its trie has " + std::to_string(trie_bytes) + " bytes of " +
           std::to_string(blob.size()));
  }
  trie_.reserve(trie_bytes / 4);
  for (std::uint32_t at = 0; at < trie_bytes; at += 4) {
    trie_.push_back(little_endian(blob.substr(at)));
  }
  replacements_ = blob.substr(trie_bytes);
  if (!replacements_.empty() && replacements_.back() != '\0')
    refuse("does not end with a zero byte");
}

Charsmap::Match Charsmap::longest_match(std::string_view text) const {
  Match match;
  std::uint32_t node = offset(trie_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || label(trie_[node]) != byte) break;
    const std::uint32_t unit = trie_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= trie_.size()) break;
    const std::uint32_t replacement = leaf_value(trie_[node]);
    if (replacement < replacements_.size()) match = {i + 1, replacement};
  }
  return match;
}

std::string Charsmap::normalize(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Match match = longest_match(text);
    if (match.bytes > 0) {
      result += replacements_.c_str() + match.replacement;
      text.remove_prefix(match.bytes);
      continue;
    }
    const CodePoint point = code_point_at(text, 0);
    append_utf8(result, point.value);
    text.remove_prefix(point.bytes);
  }
  return result;
}

std::unique_ptr<PieceModel> load_sentencepiece(const std::filesystem::path& file) {
  return std::make_unique<SentencePieceModel>(file);
}

TokenizerJson read_tokenizer_json(const std::filesystem::path& file) {
  return TokenizerJsonReader(file).read();
}

}  // namespace troupe::models
