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

/// Qwen's tokenizer: normal form C, words by pattern, then byte pairs; nothing begins or ends a
/// row. Equal to Qwen2Tokenizer of transformers 5. Immutable, cheap to copy, usable from several
/// threads.
class QwenTokenizer {
 public:
  /// Reads a folder with tokenizer.json, or vocab.json and merges.txt. Throws std::runtime_error
  /// naming file and cause.
  static QwenTokenizer load(const std::filesystem::path& folder);

  /// Ids of `text`. Bytes that are not UTF-8 read as U+FFFD.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// Ids cut or padded to `max_length`: what is too long keeps its first ids, and its end, which is
  /// `kept_after`.
  Tokenized tokenize(const std::vector<std::string>& prompts, std::int64_t max_length,
                     const std::string& kept_after = {}) const;
  /// Does the same for each prompt behind `before`, with what stands in quotes in it letter by
  /// letter. Source: LongCatImagePipeline's _encode_prompt and split_quotation.
  Tokenized tokenize_spelled(const std::string& before, const std::vector<std::string>& prompts,
                             std::int64_t max_length) const;
  /// The text that ids stand for.
  std::string decode(const std::vector<std::int64_t>& ids) const;

  /// One more than the largest id of the vocabulary itself, without tokens that a folder adds.
  std::int64_t own_vocab_size() const;
  const AddedVocabulary& added() const;
  std::int64_t pad_id() const;

 private:
  struct Impl;
  explicit QwenTokenizer(std::shared_ptr<const Impl> impl);

  std::shared_ptr<const Impl> impl_;
};

}  // namespace troupe::models
