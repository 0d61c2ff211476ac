#pragma once
#include <optional>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/layers.h"

namespace troupe::models::vae {

/// diffusers' Decoder with post_quant_conv before it.
class Decoder {
 public:
  Decoder(const spec::VaeSpec& spec, const Loader& load);

  /// Unscaled latents [1, C, h, w] of this shard's rows, to its rows of the picture.
  at::Tensor operator()(at::Tensor x, const Pass& pass, const Tick& tick) const;
  /// Ticks of one call.
  int blocks() const;

 private:
  struct UpBlock {
    std::vector<ResnetBlock2D> resnets;
    std::optional<Conv2d> upsampler;  // of the feature map doubled by repetition
  };
  std::optional<Conv2d> post_quant_conv_;
  Conv2d conv_in_;
  MidBlock mid_block_;
  std::vector<UpBlock> up_blocks_;
  GroupNorm conv_norm_out_;
  Conv2d conv_out_;
};

}  // namespace troupe::models::vae
