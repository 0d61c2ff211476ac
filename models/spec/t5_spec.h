#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"

namespace troupe::spec {

/// `text_encoder/config.json` of a T5EncoderModel, or a UMT5EncoderModel. Defaults are
/// transformers' own.
struct T5Spec {
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;
  std::int64_t d_kv = 64;
  std::int64_t d_ff = 2048;
  std::int64_t num_layers = 6;
  std::int64_t num_heads = 8;
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  /// Gated GELU (tanh form) where true, plain ReLU where false.
  bool gated_gelu = false;
  /// Every block has a table of biases by distance, as UMT5's have; else the first one's serves
  /// all.
  bool bias_in_every_block = false;

  bool operator==(const T5Spec&) const = default;
};

/// Refuses what is not supported by key and value.
T5Spec read_t5_spec(const ConfigReader& config);

/// Every tensor of the encoder, in transformers' names.
std::vector<ExpectedTensor> expected_tensors(const T5Spec& spec);

/// Decoder and head of a full T5, and the second name of the token embedding.
bool is_ignorable_t5_tensor(std::string_view name);

/// "encoder.block.7."
std::string t5_block_prefix(std::int64_t block);

}  // namespace troupe::spec
