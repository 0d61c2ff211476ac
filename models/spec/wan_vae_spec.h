#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/vae_spec.h"

namespace troupe::spec {

/// `vae/config.json` of an AutoencoderKLWan, or of an AutoencoderKLQwenImage, which has the layers
/// of 2.1's form. Defaults are diffusers'.
struct WanVaeSpec {
  std::int64_t base_dim = 96;  ///< the decoder's
  std::int64_t encoder_base_dim = 96;
  std::int64_t z_dim = 16;
  /// Widths in units of either base, from full resolution to the coarsest.
  std::vector<std::int64_t> dim_mult = {1, 2, 4, 4};
  std::int64_t num_res_blocks = 2;
  /// Flags of the levels, from full resolution down: true if the encoder halves the frames there.
  std::vector<bool> temporal_downsample = {false, true, true};
  std::vector<double> latents_mean, latents_std;
  std::int64_t out_channels = 3;
  /// True for 2.2's form: what goes into a level is added to what comes out of it.
  bool is_residual = false;
  /// Side of the square of pixels that the last layer makes at each of its positions.
  std::int64_t patch_size = 1;
  /// True if a model makes pictures with it: of a video's decoder what the first frame needs. A
  /// convolution over three frames sees nothing before that one, and no frames are doubled.
  bool one_frame = false;

  /// Pixels per latent pixel, along a side.
  std::int64_t scale_factor() const { return patch_size << (dim_mult.size() - 1); }
  /// Frames per latent frame; the first latent frame is one frame alone.
  std::int64_t frame_factor() const;
  std::int64_t latent_frames(std::int64_t frames) const {
    return (frames - 1) / frame_factor() + 1;
  }

  /// A decoder of pictures of the same widths, for whoever asks for sizes only.
  VaeSpec like_pictures() const;

  bool operator==(const WanVaeSpec&) const = default;
};

/// Refuses what is not supported by key and value.
WanVaeSpec read_wan_vae_spec(const ConfigReader& config);

/// Every tensor of a half, in diffusers' names.
std::vector<ExpectedTensor> expected_tensors(const WanVaeSpec& spec,
                                             VaeHalf half = VaeHalf::decoder);
/// Returns the number of values that a half keeps of them.
std::uint64_t kept_elements(const WanVaeSpec& spec, VaeHalf half = VaeHalf::decoder);

}  // namespace troupe::spec
