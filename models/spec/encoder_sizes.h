#pragma once

#include <cstdint>
#include <string>

#include "models/spec/config.h"

namespace troupe::spec {

/// Larger than any encoder that anybody has published.
inline constexpr std::int64_t kMaxEncoderWidth = 1 << 16;
inline constexpr std::int64_t kMaxEncoderVocabulary = 1 << 22;

/// The sizes that configs of transformers' encoders have in common, under transformers' names.
/// `Spec` brings the defaults.
template <class Spec>
void read_encoder_sizes(const ConfigReader& config, Spec& spec) {
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxEncoderWidth);
  };
  spec.vocab_size = config.integer_or("vocab_size", spec.vocab_size, 1, kMaxEncoderVocabulary);
  spec.hidden_size = size("hidden_size", spec.hidden_size);
  spec.intermediate_size = size("intermediate_size", spec.intermediate_size);
  spec.num_hidden_layers =
      config.integer_or("num_hidden_layers", spec.num_hidden_layers, 1, kMaxBlocks);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.max_position_embeddings = size("max_position_embeddings", spec.max_position_embeddings);
  spec.layer_norm_eps = config.number_or("layer_norm_eps", spec.layer_norm_eps);
}

/// Refuses sizes that do not go together.
template <class Spec>
void check_encoder_sizes(const ConfigReader& config, const Spec& spec) {
  if (!(spec.layer_norm_eps > 0 && spec.layer_norm_eps < 1)) {
    config.refuse("layer_norm_eps", "must be between 0 and 1");
  }
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.refuse("hidden_size", "must be a multiple of num_attention_heads, " +
                                     std::to_string(spec.num_attention_heads));
  }
}

}  // namespace troupe::spec
