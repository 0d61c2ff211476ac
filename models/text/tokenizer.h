#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/model_spec.h"
#include "models/text/tokenized.h"

namespace troupe::models {

class AddedVocabulary;

/// T5's tokenizer. Reads `tokenizer.json` as transformers does where it is there, else
/// `spiece.model` through sentencepiece; a `tokenizer.json` of an unsupported form gives way to a
/// `spiece.model` beside it, and is refused by name without one. Immutable, cheap to copy, usable
/// from several threads.
class Tokenizer {
 public:
  /// Throws std::runtime_error naming file and cause.
  static Tokenizer load(const spec::TokenizerSpec& spec);

  /// Ids of `text`, end token last.
  std::vector<std::int64_t> encode(std::string_view text) const;

  /// Ids cut or padded to `max_length` (at least 1), as diffusers does: a prompt that is too long
  /// keeps its first max_length - 1 tokens and the end token.
  Tokenized tokenize(const std::vector<std::string>& prompts, std::int64_t max_length) const;

  /// The text that ids stand for.
  std::string decode(const std::vector<std::int64_t>& ids) const;

  /// One more than the largest id that `encode` gives.
  std::int64_t vocab_size() const;
  /// The same of the vocabulary itself, without tokens that a folder adds.
  std::int64_t own_vocab_size() const;
  const AddedVocabulary& added() const;
  std::int64_t pad_id() const;
  std::int64_t eos_id() const;
  /// The file that the pieces came from.
  const std::filesystem::path& source() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);

  std::shared_ptr<const Impl> impl_;
};

}  // namespace troupe::models
