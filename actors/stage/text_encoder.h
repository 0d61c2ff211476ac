#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/stage/prompt_cache.h"
#include "models/encoders/bert_model.h"
#include "models/encoders/clip_text_model.h"
#include "models/encoders/t5_encoder.h"
#include "models/lora/lora_weights.h"
#include "models/spec/model_spec.h"
#include "models/text/textual_inversion.h"
#include "models/text/tokenizers.h"

namespace troupe::actors {

/// Words of textual inversions that one text encoder has for a job: of CLIP's alone.
struct LearnedWords {
  std::vector<std::string> tokens;
  at::Tensor rows;  // [tokens, D] float32 on the CPU; undefined = none

  LearnedWords() = default;
  LearnedWords(const std::vector<models::TextualInversion>& from, std::size_t encoder);
};

/// One of a folder's text encoders with its tokenizer. It reads its weights while it encodes, a
/// block at a time, or keeps what it has read once.
class TextEncoder {
 public:
  using Tick = std::function<void()>;

  /// Throws std::runtime_error naming file and tensor, or file and cause.
  TextEncoder(const spec::TextEncoderSpec& spec, const models::LoraWeights& loras,
              at::ScalarType dtype, at::Device device);

  /// Makes the weights that are read from now on stay in memory.
  void let_stay();
  /// Returns the bytes of the weights in memory.
  std::uint64_t bytes() const;
  /// Encodes each text by itself, padded or cut to `most` tokens, so that its output does not
  /// depend on the other texts.
  std::vector<EncodedPrompt> encode(const std::vector<std::string>& captions, std::int64_t most,
                                    const Tick& tick, const LearnedWords& learned = {}) const;

 private:
  using Model = std::variant<models::T5Encoder, models::ClipTextModel, models::BertModel>;

  spec::TextEncoderSpec spec_;
  models::AnyTokenizer tokenizer_;
  Model model_;
};

/// Padding is masked out in the encoder and of no use behind it.
bool cuts_padding(spec::TextUse use);

}  // namespace troupe::actors
