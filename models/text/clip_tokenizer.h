#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenized.h"

namespace troupe::models {

class AddedVocabulary;

/// CLIP's tokenizer: lower case, white space, words by pattern, then byte pairs. Equal to
/// CLIPTokenizer of transformers 5. Immutable, cheap to copy, usable from several threads.
class ClipTokenizer {
 public:
  /// Reads a folder with tokenizer.json, or vocab.json and merges.txt. Throws std::runtime_error
  /// naming file and cause.
  static ClipTokenizer load(const std::filesystem::path& folder);

  /// The same tokenizer with words that are found as a whole, which get the ids from vocab_size()
  /// on: `add_tokens` of transformers.
  ClipTokenizer with_tokens(const std::vector<std::string>& words) const;

  /// Ids of `text`, begin and end token included. Bytes that are not UTF-8 read as U+FFFD.
  std::vector<std::int64_t> encode(std::string_view text) const;

  /// Ids cut or padded to `max_length` (at least 2) as transformers does: what is too long keeps
  /// its first max_length - 1 ids and the end token.
  Tokenized tokenize(const std::vector<std::string>& prompts, std::int64_t max_length) const;

  /// The text that ids stand for: lower case, words apart.
  std::string decode(const std::vector<std::int64_t>& ids) const;

  /// One more than the largest id.
  std::int64_t vocab_size() const;
  /// The same of the vocabulary itself, without tokens that a folder adds.
  std::int64_t own_vocab_size() const;
  const AddedVocabulary& added() const;
  std::int64_t bos_id() const;
  std::int64_t eos_id() const;
  std::int64_t pad_id() const;
  /// Number of tokens that the model was trained for, as the folder states it; 0 if the folder does
  /// not.
  std::int64_t model_max_length() const;
  /// The file that the vocabulary came from.
  const std::filesystem::path& source() const;

 private:
  struct Impl;
  explicit ClipTokenizer(std::shared_ptr<const Impl> impl);

  std::shared_ptr<const Impl> impl_;
};

}  // namespace troupe::models
