#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/text/piece_model.h"

namespace troupe::models {

/// A tokenizer.json that is sound but of a form that T5 does not use.
class UnsupportedTokenizer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TokenizerJson {
  std::unique_ptr<PieceModel> model;
  nlohmann::json added_tokens;  ///< the file's `added_tokens`, unchanged
};

/// Reads the Unigram `tokenizer.json` that transformers 4 and 5 save for T5. Throws
/// UnsupportedTokenizer naming the normalizer, pre-tokenizer, post-processor or model that is not
/// supported, std::runtime_error for a file that is damaged.
TokenizerJson read_tokenizer_json(const std::filesystem::path& file);

}  // namespace troupe::models
