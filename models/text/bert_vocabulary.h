#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/text/special_tokens.h"

namespace troupe::models {

/// Contents of a BERT tokenizer's folder: pieces, rules and special tokens.
struct BertVocabulary {
  /// The file that the pieces came from.
  std::filesystem::path source;
  /// Pieces by id.
  std::vector<std::string> pieces;
  bool lower_case = true, strip_accents = true, chinese_apart = true;
  FolderTokens tokens{{{"cls_token", "[CLS]"},
                       {"sep_token", "[SEP]"},
                       {"pad_token", "[PAD]"},
                       {"unk_token", "[UNK]"},
                       {"mask_token", "[MASK]"}}};
};

/// Reads tokenizer.json with a WordPiece model where it is there, as transformers does, else
/// vocab.txt; tokenizer_config.json, and special_tokens_map.json and added_tokens.json where that
/// lists no added tokens.
/// Throws std::runtime_error naming file, key and value for all that is not supported.
BertVocabulary read_bert_vocabulary(const std::filesystem::path& folder);

}  // namespace troupe::models
