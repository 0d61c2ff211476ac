#include <sentencepiece_processor.h>

#include <stdexcept>

#include "models/spec/json_text.h"
#include "models/text/piece_model.h"

namespace troupe::models {
namespace {

constexpr std::uint64_t kMaxModelBytes = 256U << 20U;
constexpr std::string_view kSpaceMark = "\u2581";

/// A space mark in the text itself counts as a space, as it does in transformers.
std::string without_marks(std::string_view text) {
  std::string result(text);
  for (auto at = result.find(kSpaceMark); at != std::string::npos;
       at = result.find(kSpaceMark, at)) {
    result = result.substr(0, at) + " " + result.substr(at + kSpaceMark.size());
  }
  return result;
}

class SentencePieceModel final : public PieceModel {
 public:
  explicit SentencePieceModel(const std::filesystem::path& file) : file_(file) {
    const std::string bytes = spec::read_text_file(file, kMaxModelBytes);
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok() || processor_.GetPieceSize() <= 0) {
      throw std::runtime_error("[load_tokenizer] " + file.string() +
                               ": is not a sentencepiece model: " + status.ToString());
    }
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
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<PieceModel> load_sentencepiece(const std::filesystem::path& file) {
  return std::make_unique<SentencePieceModel>(file);
}

}  // namespace troupe::models
