#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/sd3_spec.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

class FitCheck;
struct Pipeline;

/// `transformer/config.json` of a Flux2Transformer2DModel: FLUX.2-klein. Defaults are diffusers'.
struct Flux2Spec {
  static constexpr std::string_view kClasses[] = {"Flux2Transformer2DModel"};
  /// Refuses what is not supported by key and value.
  static Flux2Spec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  /// Channels of a token, which are those of a pixel of the patched latents.
  std::int64_t in_channels = 128;
  std::int64_t num_layers = 8;          ///< blocks of two streams
  std::int64_t num_single_layers = 48;  ///< blocks of one stream, after them
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 48;
  std::int64_t joint_attention_dim = 15360;
  double mlp_ratio = 3;
  double rope_theta = 2000;
  /// Numbers of a head's channels that belong to each of the four coordinates of its rotary
  /// positions: picture, row, column, and place in the text.
  std::vector<std::int64_t> axes_dims_rope = {32, 32, 32, 32};
  /// True if the folder's pipeline was distilled to few steps without guidance; model_index.json
  /// says so.
  bool is_distilled = false;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  /// Columns of a block's feed-forward half, of which there are two: one gates the other.
  std::int64_t feed_forward() const;
  std::int64_t blocks() const { return num_layers + num_single_layers; }
  JointBlockShape joint_block() const;

  bool operator==(const Flux2Spec&) const = default;
};

std::vector<PlannedTensor> planned_tensors(const Flux2Spec& spec);
TransformerFacts facts_of(const Flux2Spec& spec);
void check_fit(const Flux2Spec& spec, const FitCheck& fit);

}  // namespace troupe::spec
