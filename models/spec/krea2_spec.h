#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

class FitCheck;
struct Pipeline;

/// Sizes of a Krea 2 block, of the joint ones or of those that the text has for itself.
struct Krea2Sizes {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  /// Heads of keys and values, each of which as many heads of queries attend to.
  std::int64_t kv_heads = 0;
  std::int64_t feed_forward = 0;
  double eps = 0;

  std::int64_t head_dim() const { return width / heads; }
  std::int64_t kv_width() const { return kv_heads * head_dim(); }
  /// Heads of queries that share a head of keys and values.
  std::int64_t group() const { return heads / kv_heads; }
  /// Number of weights that a token meets in its products.
  double weights() const;
};

/// `transformer/config.json` of a Krea2Transformer2DModel. Defaults are diffusers'.
struct Krea2Spec {
  static constexpr std::string_view kClasses[] = {"Krea2Transformer2DModel"};
  /// Refuses what is not supported by key and value.
  static Krea2Spec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  /// Channels of a token: those of four latent pixels.
  std::int64_t in_channels = 64;
  std::int64_t num_layers = 28;
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 48;
  std::int64_t num_key_value_heads = 12;
  std::int64_t intermediate_size = 16384;
  /// Number of sines that a timestep becomes first.
  std::int64_t timestep_embed_dim = 256;
  std::int64_t text_hidden_dim = 2560;
  /// Number of the text encoder's layers whose states are taken.
  std::int64_t num_text_layers = 12;
  std::int64_t text_num_attention_heads = 20;
  std::int64_t text_num_key_value_heads = 20;
  std::int64_t text_intermediate_size = 6912;
  /// Number of blocks in which the states of a text token attend to each other, and of those in
  /// which the text's tokens do.
  std::int64_t num_layerwise_text_blocks = 2;
  std::int64_t num_refiner_text_blocks = 2;
  /// Numbers of a head's channels that turn by a token's frame, row and column.
  std::vector<std::int64_t> axes_dims_rope = {32, 48, 48};
  double rope_theta = 1000;
  double norm_eps = 1e-5;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  Krea2Sizes block() const;
  Krea2Sizes text_block() const;

  bool operator==(const Krea2Spec&) const = default;
};

/// Latent pixels along a side of a token.
inline constexpr std::int64_t kKrea2Patch = 2;
/// Logarithm of the factor by which a distilled model's noise levels are shifted at every size.
/// Source: Krea2Pipeline.
inline constexpr double kKrea2DistilledShift = 1.15;

/// "transformer_blocks.3."
std::string krea2_block_prefix(std::int64_t block);
/// "text_fusion.layerwise_blocks.1."
std::string krea2_layerwise_prefix(std::int64_t block);
/// "text_fusion.refiner_blocks.1."
std::string krea2_refiner_prefix(std::int64_t block);

std::vector<PlannedTensor> planned_tensors(const Krea2Spec& spec);
TransformerFacts facts_of(const Krea2Spec& spec);
void check_fit(const Krea2Spec& spec, const FitCheck& fit);

}  // namespace troupe::spec
