#include "models/text/tokenizer_json.h"

#include <optional>

#include "models/spec/json_text.h"
#include "models/text/charsmap.h"
#include "models/text/piece_model.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"
#include "models/text/unigram.h"

namespace troupe::models {
namespace {

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

TokenizerJson read_tokenizer_json(const std::filesystem::path& file) {
  return TokenizerJsonReader(file).read();
}

}  // namespace troupe::models
