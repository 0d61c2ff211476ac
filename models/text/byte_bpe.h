#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::models {

/// Byte-pair encoding over the bytes of words, as GPT-2, CLIP and Qwen use it: a byte is spelled by
/// a letter of its own, the last letter of a word bears the end of a word where there is one, and
/// the pair whose merge was learned first is merged first. Immutable, usable from several threads.
class ByteBpe {
 public:
  using Vocabulary = std::unordered_map<std::string, std::int64_t>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  /// `unk` is the id of letters that the vocabulary lacks; without it the vocabulary has them all.
  /// Throws std::invalid_argument naming the letter, or the merge whose parts or whole the
  /// vocabulary lacks.
  ByteBpe(Vocabulary vocabulary, const Merges& merges, std::string_view end_of_word,
          std::optional<std::int64_t> unk);

  /// Appends the ids of one word, in n log n of its bytes.
  void encode(std::string_view word, std::vector<std::int64_t>& ids) const;

  /// -1 if there is no such token.
  std::int64_t id(const std::string& token) const;
  /// The bytes that a token spells, a space for the end of a word; empty if there is no such id.
  std::string text(std::int64_t id) const;
  /// One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// Number of tokens.
  std::int64_t count() const { return std::ssize(vocabulary_); }

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
  std::string end_of_word_;
  std::unordered_map<std::pair<std::int64_t, std::int64_t>, Merge, PairHash> merges_;
  std::int64_t byte_ids_[256];
  std::int64_t last_byte_ids_[256];
};

/// The one form of `tokenizer.json` that a tokenizer's class has.
struct BpeForm {
  std::string name;  ///< Name of the class, for errors
  std::string end_of_word;
  /// Types of the steps by which a text is prepared; a single one stands by itself in the file.
  std::vector<std::string> normalizers;
  std::string words;           ///< pattern by which a text is split
  bool split_inverted = true;  ///< words are what the pattern matches, and nothing else is kept
  bool splits_again = true;    ///< the byte-level step splits words once more
  bool adds_nothing = false;   ///< no tokens are put around a text
};

/// Vocabulary of a folder.
struct BpeFiles {
  ByteBpe::Vocabulary vocabulary;
  ByteBpe::Merges merges;
  std::filesystem::path source;  ///< the file that the vocabulary came from
  nlohmann::json added_tokens;   ///< null unless the source is a tokenizer.json that has some
};

/// Reads `tokenizer.json` where it is there, else `vocab.json` and `merges.txt`. Throws
/// std::runtime_error naming file, key and value for a file that is missing or damaged and for
/// another form.
BpeFiles read_bpe_files(const std::filesystem::path& folder, const BpeForm& form);

/// Largest id that a vocabulary may have.
inline constexpr std::int64_t kMaxTokenId = 1 << 24;

/// Unicode's White_Space, as a pattern has it inside brackets.
inline constexpr std::string_view kWhiteSpace =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

}  // namespace troupe::models
