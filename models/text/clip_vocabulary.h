#pragma once

#include <cstdint>
#include <filesystem>

#include "models/text/byte_bpe.h"
#include "models/text/special_tokens.h"

namespace troupe::models {

/// Contents of a CLIP tokenizer's folder.
struct ClipVocabulary {
  ByteBpe::Vocabulary vocabulary;
  ByteBpe::Merges merges;
  FolderTokens tokens{{{"bos_token", "<|startoftext|>"},
                       {"eos_token", "<|endoftext|>"},
                       {"unk_token", "<|endoftext|>"},
                       {"pad_token", "<|endoftext|>"}}};
  /// Number of tokens that the model was trained for; 0 if the folder names none.
  std::int64_t model_max_length = 0;
  /// The file that the vocabulary came from.
  std::filesystem::path source;
};

/// Reads `tokenizer.json` where it is there, else `vocab.json` and `merges.txt`; settings from
/// `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, where there are any.
/// Throws std::runtime_error naming file, key
/// and value for a file that is missing or damaged and for a form that CLIP does not use.
ClipVocabulary read_clip_vocabulary(const std::filesystem::path& folder);

}  // namespace troupe::models
