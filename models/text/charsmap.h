#pragma once

#include <cstdint>
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

}  // namespace troupe::models
