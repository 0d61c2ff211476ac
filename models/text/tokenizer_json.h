#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/text/piece_model.h"

namespace troupe::models {

/// A token that is cut out of the text before it is split into pieces.
struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  /// Takes the white space before it, or after it, along.
  bool lstrip = false;
  bool rstrip = false;
};

/// A tokenizer.json that is sound but of a form that T5 does not use.
class UnsupportedTokenizer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TokenizerJson {
  std::unique_ptr<PieceModel> model;
  std::vector<AddedToken> added_tokens;
};

/// Reads the Unigram `tokenizer.json` that transformers 4 and 5 save for T5. Throws
/// UnsupportedTokenizer naming the normalizer, pre-tokenizer, post-processor or model that is not
/// supported, std::runtime_error for a file that is damaged.
TokenizerJson read_tokenizer_json(const std::filesystem::path& file);

}  // namespace troupe::models
