#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
    norm,            ///< norm with SiLU, before the last convolution
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
/// Returns the layers of a video's decoder. Source: WanDecoder3d of diffusers.
std::vector<VaeLayer> layers_of(const WanVaeSpec& spec);

}  // namespace troupe::spec
