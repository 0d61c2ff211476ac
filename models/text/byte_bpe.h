#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::models {

/// Byte-pair encoding over the bytes of words, as GPT-2 and CLIP use it: a byte is spelled by a
/// letter of its own, the last letter of a word bears "</w>", and the pair whose merge was learned
/// first is merged first. Immutable, usable from several threads.
class ByteBpe {
 public:
  using Vocabulary = std::unordered_map<std::string, std::int64_t>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  /// `unk` is the id of letters that the vocabulary lacks. Throws std::invalid_argument naming the
  /// merge whose parts or whole the vocabulary lacks.
  ByteBpe(Vocabulary vocabulary, const Merges& merges, std::int64_t unk);

  /// Appends the ids of one word, in n log n of its bytes.
  void encode(std::string_view word, std::vector<std::int64_t>& ids) const;

  /// -1 if there is no such token.
  std::int64_t id(const std::string& token) const;
  /// The bytes that a token spells, a space for the end of a word; empty if there is no such id.
  std::string text(std::int64_t id) const;
  /// One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  struct Merge {
    std::int64_t rank;
    std::int64_t whole;
  };
  struct PairHash {
    std::size_t operator()(const std::pair<std::int64_t, std::int64_t>& pair) const {
      return std::hash<std::int64_t>()(pair.first * 0x9E3779B97F4A7C15LL + pair.second);
    }
  };

  Vocabulary vocabulary_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::pair<std::int64_t, std::int64_t>, Merge, PairHash> merges_;
  std::int64_t byte_ids_[256];
  std::int64_t last_byte_ids_[256];
};

/// The end of a word in tokens' spelling.
inline constexpr std::string_view kEndOfWord = "</w>";

}  // namespace troupe::models
