#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/expected_tensors.h"
#include "models/spec/vae_layers.h"

namespace troupe::spec {

/// `vae/config.json` of an AutoencoderKL.
struct VaeSpec {
  std::int64_t in_channels = 3;
  std::int64_t latent_channels = 4;
  std::int64_t out_channels = 3;
  /// Widths from full resolution to the coarsest.
  std::vector<std::int64_t> block_out_channels = {64};
  std::int64_t layers_per_block = 1;
  std::int64_t norm_num_groups = 32;
  double scaling_factor = 0.18215;
  double shift_factor = 0;
  bool mid_block_add_attention = true;
  bool use_quant_conv = true;
  bool use_post_quant_conv = true;
  /// Pixels along a side of the pictures it was trained on: the tiles of tiled coding are so large.
  std::int64_t sample_size = 32;
  /// Half-precision pipelines decode in float32 where this is set.
  bool force_upcast = true;

  /// Pixels per latent pixel, along a side.
  std::int64_t scale_factor() const { return std::int64_t{1} << (block_out_channels.size() - 1); }
  /// Number of pixels of which `sample_size` must be a multiple for tiled coding: a quarter of a
  /// tile is latent pixels.
  std::int64_t tile_unit() const { return 4 * scale_factor(); }
  bool operator==(const VaeSpec&) const = default;
};

/// Refuses what is not supported by key and value.
VaeSpec read_vae_spec(const ConfigReader& config);

/// Every tensor of a half, in diffusers' names; the attention's names before diffusers 0.18 (query,
/// key, value, proj_attn) are given as other names.
std::vector<ExpectedTensor> expected_tensors(const VaeSpec& spec, VaeHalf half = VaeHalf::decoder);

/// Tensors of the encoder's half, which a folder may leave out where nothing encodes.
bool is_ignorable_vae_tensor(std::string_view name);

}  // namespace troupe::spec
