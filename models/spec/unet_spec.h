#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/expected_tensors.h"

namespace troupe::spec {

/// One resolution of a U-Net; each is half as high and wide as the one before, rounded up.
struct UNetLevel {
  std::int64_t channels = 0;
  /// Residual blocks on the way down; one more on the way up.
  std::int64_t layers = 2;
  std::int64_t heads = 8;
  /// Transformer blocks after each residual block; 0 without attention.
  std::int64_t down_transformers = 0;
  std::int64_t up_transformers = 0;

  bool operator==(const UNetLevel&) const = default;
};

/// `unet/config.json` of a UNet2DConditionModel as Stable Diffusion 1, 2 and XL have it.
struct UNetSpec {
  std::int64_t in_channels = 4;
  std::int64_t out_channels = 4;
  /// Of the latents that a request without a size gets.
  std::int64_t sample_size = 64;
  std::vector<UNetLevel> levels;
  std::int64_t mid_transformers = 1;
  std::int64_t mid_heads = 8;
  std::int64_t cross_attention_dim = 1280;
  std::int64_t norm_num_groups = 32;
  double norm_eps = 1e-5;
  bool flip_sin_to_cos = true;
  std::int64_t freq_shift = 0;
  /// Products by linear layers, or by convolutions of side 1: other shapes of the same weights.
  bool use_linear_projection = false;
  /// SDXL's: pooled text and sizes are added to the time. 0 without.
  std::int64_t addition_time_embed_dim = 0;
  std::int64_t projection_class_embeddings_input_dim = 0;

  std::int64_t time_embed_dim() const { return 4 * levels.front().channels; }
  /// Numbers of sizes and crops that are added: six in SDXL.
  std::int64_t time_ids(std::int64_t pooled) const {
    return (projection_class_embeddings_input_dim - pooled) / addition_time_embed_dim;
  }

  bool operator==(const UNetSpec&) const = default;
};

/// Refuses what is not supported by key and value.
UNetSpec read_unet_spec(const ConfigReader& config);

/// Every tensor, in diffusers' names.
std::vector<ExpectedTensor> expected_tensors(const UNetSpec& spec);

}  // namespace troupe::spec
