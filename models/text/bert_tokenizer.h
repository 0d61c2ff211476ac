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

/// BERT's tokenizer: clean text, Chinese letters apart, lower case without accents where the folder
/// says so, words and punctuation, then the longest pieces of the vocabulary. Equal to
/// BertTokenizer of transformers 5. Immutable, cheap to copy, usable from several threads.
class BertTokenizer {
 public:
  /// Reads a folder, as read_bert_vocabulary does. Throws std::runtime_error naming file and cause.
  static BertTokenizer load(const std::filesystem::path& folder);

  /// Returns the ids of `text`, begin and end token included; special tokens that are spelt out in
  /// the text are these tokens. Bytes that are not UTF-8 read as U+FFFD, which is dropped.
  std::vector<std::int64_t> encode(std::string_view text) const;

  /// Ids cut or padded to `max_length` (at least 2): what is too long keeps its first
  /// max_length - 1 ids and the end token.
  Tokenized tokenize(const std::vector<std::string>& prompts, std::int64_t max_length) const;

  /// One more than the largest id.
  std::int64_t vocab_size() const;
  /// The same of the vocabulary itself, without tokens that a folder adds.
  std::int64_t own_vocab_size() const;
  const AddedVocabulary& added() const;

 private:
  struct Impl;
  explicit BertTokenizer(std::shared_ptr<const Impl> impl);

  std::shared_ptr<const Impl> impl_;
};

}  // namespace troupe::models
