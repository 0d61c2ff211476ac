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

/// `transformer/config.json` of a PixArtTransformer2DModel, or of the Transformer2DModel that the
/// first published PixArt folders name. Defaults are diffusers' own.
struct PixArtSpec {
  static constexpr std::string_view kClasses[] = {"PixArtTransformer2DModel", "Transformer2DModel"};
  /// Buffers that some published checkpoints carry and no computation reads.
  static constexpr std::string_view kUnused[] = {"pos_embed.pos_embed",
                                                 "caption_projection.y_embedding"};
  /// Refuses what is not supported by key and value.
  static PixArtSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  std::int64_t num_attention_heads = 16;
  std::int64_t attention_head_dim = 72;
  std::int64_t in_channels = 4;
  /// Twice `in_channels` where the variance is learned.
  std::int64_t out_channels = 8;
  std::int64_t num_layers = 28;
  std::int64_t cross_attention_dim = 1152;
  /// Side in latent pixels that the position embedding is made for.
  std::int64_t sample_size = 128;
  /// Side of a token in latent pixels.
  std::int64_t patch_size = 2;
  /// Width of the text encoder's states.
  std::int64_t caption_channels = 4096;
  double interpolation_scale = 2;
  /// Resolution and aspect ratio join the time embedding.
  bool use_additional_conditions = true;
  double norm_eps = 1e-6;
  /// Bias of q, k and v; the output projection always has one.
  bool attention_bias = true;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  bool learned_sigma() const { return out_channels == 2 * in_channels; }
  /// Width of each of the two micro-condition embeddings.
  std::int64_t condition_dim() const { return inner_dim() / 3; }

  bool operator==(const PixArtSpec&) const = default;
};

/// Every tensor of the transformer in diffusers' names. A learned variance is not computed and not
/// kept in memory.
std::vector<PlannedTensor> planned_tensors(const PixArtSpec& spec);
TransformerFacts facts_of(const PixArtSpec& spec);
void check_fit(const PixArtSpec& spec, const FitCheck& fit);

/// "transformer_blocks.7."
std::string pixart_block_prefix(std::int64_t block);

}  // namespace troupe::spec
