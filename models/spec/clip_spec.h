#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"

namespace troupe::spec {

/// `config.json` of a CLIPTextModel or CLIPTextModelWithProjection. Defaults are transformers' own.
struct ClipSpec {
  std::int64_t vocab_size = 49408;
  std::int64_t hidden_size = 512;
  std::int64_t intermediate_size = 2048;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 8;
  std::int64_t max_position_embeddings = 77;
  double layer_norm_eps = 1e-5;
  /// x · sigmoid(1.702 x) where true, GELU by the error function where false.
  bool quick_gelu = true;
  /// Id of the token at whose first place the states are pooled; 2, which older configs have, means
  /// the place of the largest id.
  std::int64_t eos_token_id = 49407;
  /// 0 without a projection.
  std::int64_t projection_dim = 0;

  /// Width of the pooled states.
  std::int64_t pooled_size() const { return projection_dim > 0 ? projection_dim : hidden_size; }

  bool operator==(const ClipSpec&) const = default;
};

/// Refuses what is not supported by key and value. `with_projection`: the class is
/// CLIPTextModelWithProjection.
ClipSpec read_clip_spec(const ConfigReader& config, bool with_projection);

/// Every tensor of the encoder, in transformers' names; "text_model." is left out in what
/// transformers 5 saves of a CLIPTextModel.
std::vector<ExpectedTensor> expected_tensors(const ClipSpec& spec);

/// Returns whether a tensor is ignored: counted positions of old checkpoints, the image half of a
/// whole CLIP, and the projection if it is not asked for.
bool is_ignorable_clip_tensor(std::string_view name);

/// "encoder.layers.7.", of both of CLIP's halves
std::string clip_layer_prefix(std::int64_t block);

/// Bytes of the encoder, and of its largest part that is in use at one time: its embeddings or a
/// block.
std::uint64_t clip_bytes(const ClipSpec& spec, const WeightIndex& weights);
std::uint64_t clip_peak_bytes(const ClipSpec& spec, const WeightIndex& weights);

}  // namespace troupe::spec
