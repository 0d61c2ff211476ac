#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/text/byte_bpe.h"

namespace troupe::models {

/// A token that is cut out of the text before it is split into words.
struct ClipAddedToken {
  std::string content;
  /// Takes the white space before it, or after it, along.
  bool lstrip = false;
  bool rstrip = false;
  /// Looked for in the prepared text (lower case) instead of the text as given.
  bool normalized = false;

  bool operator==(const ClipAddedToken&) const = default;
};

/// What a CLIP tokenizer's folder holds.
struct ClipVocabulary {
  ByteBpe::Vocabulary vocabulary;
  ByteBpe::Merges merges;
  std::vector<ClipAddedToken> added_tokens;
  std::string bos = "<|startoftext|>";
  std::string eos = "<|endoftext|>";
  std::string unk = "<|endoftext|>";
  std::string pad = "<|endoftext|>";
  /// 0 where none is given.
  std::int64_t model_max_length = 0;
  /// The file that the vocabulary came from.
  std::filesystem::path source;
};

/// Reads `tokenizer.json` where it is there, else `vocab.json` and `merges.txt`; settings from
/// `tokenizer_config.json` and `special_tokens_map.json`, where there are any. Of the added tokens,
/// those that transformers 5 has for the same folder. Throws std::runtime_error naming file, key
/// and value for a file that is missing or damaged and for a form that CLIP does not use.
ClipVocabulary read_clip_vocabulary(const std::filesystem::path& folder);

}  // namespace troupe::models
