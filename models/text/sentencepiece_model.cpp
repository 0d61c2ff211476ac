#include <sentencepiece_processor.h>

#include <optional>
#include <stdexcept>

#include "models/spec/json_text.h"
#include "models/text/charsmap.h"
#include "models/text/piece_model.h"

namespace troupe::models {
namespace {

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

}  // namespace

std::unique_ptr<PieceModel> load_sentencepiece(const std::filesystem::path& file) {
  return std::make_unique<SentencePieceModel>(file);
}

}  // namespace troupe::models
