#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <tuple>

namespace troupe::actors {

/// Output of a text encoder for one text.
struct EncodedPrompt {
  at::Tensor states;        // [tokens, d]; without padding that nobody sees; or undefined
  at::Tensor pooled;        // [p], or undefined
  std::int64_t length = 0;  // tokens that are no padding
  std::string cut;          // what did not fit

  std::uint64_t bytes() const;
};

/// Outputs of text encoders for texts, in host memory; the least recently used goes first. The
/// cache belongs to one deployment, whose weights, LoRAs and type are the same as long as it lives,
/// so that an encoder, a text and the number of its tokens determine the output.
class PromptCache {
 public:
  struct Key {
    std::size_t encoder = 0;
    std::int64_t tokens = 0;   // that the text is padded or cut to
    std::string text;          // as it is tokenized
    std::string learned = {};  // which words of textual inversions there are beside the vocabulary

    auto operator<=>(const Key&) const = default;
  };

  /// Makes a cache of at most `most_bytes` bytes.
  explicit PromptCache(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  /// Returns the output, valid until the next `keep`; null if it is not in the cache.
  const EncodedPrompt* find(const Key& key);
  /// Copies the output into the cache, unless it is larger than the whole cache.
  void keep(const Key& key, const EncodedPrompt& prompt);

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    EncodedPrompt prompt;
    std::uint64_t bytes = 0;
    std::list<Key>::iterator use;
  };
  void drop(std::map<Key, Entry>::iterator entry);

  std::uint64_t most_bytes_;
  std::uint64_t bytes_ = 0;
  std::list<Key> uses_;  // the last one first
  std::map<Key, Entry> entries_;
};

}  // namespace troupe::actors
