#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::models {

/// Character that sentencepiece writes for a space.
inline constexpr std::string_view kSpaceMark = "\u2581";

/// Splits plain text, free of added tokens, into pieces.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  /// Prepares a text, before tokens are looked for that want it prepared.
  virtual std::string normalize(std::string_view text) const = 0;
  /// Appends the ids of a prepared text.
  virtual void encode(std::string_view text, std::vector<std::int64_t>& ids) const = 0;
  /// -1 if there is no such piece.
  virtual std::int64_t id(std::string_view piece) const = 0;
  virtual std::string piece(std::int64_t id) const = 0;
  virtual std::int64_t size() const = 0;
};

/// A `spiece.model`, through sentencepiece.
std::unique_ptr<PieceModel> load_sentencepiece(const std::filesystem::path& file);

}  // namespace troupe::models
