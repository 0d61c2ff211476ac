#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"

namespace troupe::spec {

struct VaeSpec;
struct WanVaeSpec;

/// The halves of an AutoencoderKL, each with its 1×1 convolution at the latents' side.
enum class VaeHalf { decoder, encoder };

/// A layer of an autoencoder's half.
struct VaeLayer {
  enum class Kind {
    convolution,     ///< `side` × `side`; of a video over three frames, but where `side` is 1
    residual,        ///< twice norm and 3×3 convolution, a 1×1 shortcut where the width changes
    attention,       ///< norm and one head over all positions of a frame, with residual
    upsample,        ///< rows and columns doubled by repetition, then a 3×3 convolution
    downsample,      ///< 3×3 convolution of stride 2
    doubled_frames,  ///< videos only: convolution over three frames, whose halves are two frames
    halved_frames,   ///< videos only: convolution over three frames, of every second one; the first
                     ///< frame stays as it is
    norm,            ///< norm with SiLU, before the last convolution
    kept,            ///< 2.2's videos only: its input, unchanged, for the next `added` one
    added,           ///< adds what was kept: in the decoder each value repeated in space, time and
                     ///< channels, in the encoder means of neighbours
  };
  Kind kind = Kind::convolution;
  std::string name;  ///< name in diffusers' files, without ".weight"
  std::int64_t in = 0, out = 0;
  /// Pixels per latent pixel along a side, of the layer's input and of its output.
  std::int64_t scale_in = 1, scale_out = 1;
  std::int64_t side = 3;
};

/// Returns the layers of the encoder or decoder, in their order. Their tensors' names, FLOPs,
/// memory, bytes between shards and the computation itself are all made from this list. Source:
/// Encoder and Decoder of diffusers.
std::vector<VaeLayer> layers_of(const VaeSpec& spec, VaeHalf half);
/// Returns the layers of a video's half. Source: WanEncoder3d and WanDecoder3d of diffusers.
std::vector<VaeLayer> layers_of(const WanVaeSpec& spec, VaeHalf half);

/// Begin and end of the tiles that a side of `size` is coded in, as diffusers lays them: one every
/// three quarters of `tile`, the last ones cut off at the end.
inline std::vector<std::pair<std::int64_t, std::int64_t>> tile_runs(std::int64_t size,
                                                                    std::int64_t tile) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (std::int64_t begin = 0; begin < size; begin += tile * 3 / 4)
    runs.emplace_back(begin, std::min(size, begin + tile));
  return runs;
}

/// `vae/config.json` of an AutoencoderKL, or of an AutoencoderKLFlux2, whose latents are patched:
/// `latent_patch` × `latent_patch` positions of what the encoder makes are one, with all channels.
struct VaeSpec {
  std::int64_t in_channels = 3;
  std::int64_t latent_patch = 1;
  /// Channels of the latents, patched.
  std::int64_t latent_channels = 4;
  std::int64_t out_channels = 3;
  /// Side of the square of pixels that the last layer makes at each of its positions.
  std::int64_t patch_size = 1;
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
  /// Number that is added to the stored variances by which patched latents are scaled.
  double batch_norm_eps = 1e-4;

  /// Pixels per latent pixel, along a side.
  std::int64_t scale_factor() const {
    return (latent_patch * patch_size) << (block_out_channels.size() - 1);
  }
  /// Channels of what the encoder makes and the decoder takes.
  std::int64_t coded_channels() const { return latent_channels / (latent_patch * latent_patch); }
  /// Number of pixels of which `sample_size` must be a multiple for tiled coding: a quarter of a
  /// tile is latent pixels.
  std::int64_t tile_unit() const { return 4 * scale_factor(); }
  bool operator==(const VaeSpec&) const = default;
};

/// Reads an AutoencoderKL's config. Refuses what is not supported by key and value.
VaeSpec read_vae_spec(const ConfigReader& config);
/// Does the same for an AutoencoderKLFlux2.
VaeSpec read_flux2_vae_spec(const ConfigReader& config);

/// Names of the statistics of patched latents, by which they are scaled and shifted, [channels].
inline constexpr const char* kPatchedMean = "bn.running_mean";
inline constexpr const char* kPatchedVariance = "bn.running_var";

/// Every tensor of a half, in diffusers' names; the attention's names before diffusers 0.18 (query,
/// key, value, proj_attn) are given as other names. The statistics of patched
/// latents are the decoder's.
std::vector<ExpectedTensor> expected_tensors(const VaeSpec& spec, VaeHalf half = VaeHalf::decoder);

/// Returns whether a tensor is of the encoder's half, which a folder may leave out where nothing
/// encodes, or the count of a training's batches.
bool is_ignorable_vae_tensor(std::string_view name);

}  // namespace troupe::spec
