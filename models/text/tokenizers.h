#pragma once

#include <filesystem>
#include <variant>

#include "models/spec/model_spec.h"
#include "models/text/bert_tokenizer.h"
#include "models/text/clip_tokenizer.h"
#include "models/text/qwen_tokenizer.h"
#include "models/text/tokenizer.h"

namespace troupe::models {

using AnyTokenizer = std::variant<Tokenizer, ClipTokenizer, BertTokenizer, QwenTokenizer>;

/// The tokenizer of a text encoder that is there. Throws std::runtime_error naming file and cause,
/// also where it has an id for which the encoder has no row.
AnyTokenizer load_tokenizer(const spec::TextEncoderSpec& encoder);

/// Reads a model folder whole, weights apart: spec::read_model_spec, then the tokenizers, so that
/// nothing is left to refuse for those who load it.
spec::ModelSpec read_model_folder(const std::filesystem::path& folder);

}  // namespace troupe::models
