#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::models {

/// The character map that sentencepiece compiles into a model (NFKC and its kin): a double-array
/// trie of byte sequences over a pool of replacements. `tokenizer.json` carries it as
/// `Precompiled`.
class Charsmap {
 public:
  /// Throws std::runtime_error naming `file` for a blob whose sizes do not add up.
  Charsmap(std::string_view blob, const std::string& file);

  /// Replaces the longest match at each position; bytes that are not UTF-8 become U+FFFD.
  /// Stays within its tables whatever the blob says.
  std::string normalize(std::string_view text) const;

 private:
  struct Match {
    std::size_t bytes = 0;
    std::uint32_t replacement = 0;
  };
  Match longest_match(std::string_view text) const;

  std::vector<std::uint32_t> trie_;
  std::string replacements_;
};

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

/// A tokenizer.json that is sound but of a form that T5 does not use.
class UnsupportedTokenizer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TokenizerJson {
  std::unique_ptr<PieceModel> model;
  nlohmann::json added_tokens;  ///< the file's `added_tokens`, unchanged
};

/// Reads the Unigram `tokenizer.json` that transformers 4 and 5 save for T5. Throws
/// UnsupportedTokenizer naming the normalizer, pre-tokenizer, post-processor or model that is not
/// supported, std::runtime_error for a file that is damaged.
TokenizerJson read_tokenizer_json(const std::filesystem::path& file);

}  // namespace troupe::models
