#pragma once
#include <optional>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/layers.h"

namespace troupe::models::vae {

/// diffusers' Encoder with quant_conv after it.
class Encoder {
 public:
  Encoder(const spec::VaeSpec& spec, const Loader& load);

  /// Pictures [1, C, H, W] of this shard's rows, to its rows of the moments [1, 2·latents, h, w],
  /// means first, then log variances.
  at::Tensor operator()(at::Tensor x, const Pass& pass, const Tick& tick) const;
  /// Ticks of one call.
  int blocks() const;

 private:
  struct DownBlock {
    std::vector<ResnetBlock2D> resnets;
    std::optional<Conv2d> downsampler;
  };
  Conv2d conv_in_;
  std::vector<DownBlock> down_blocks_;
  MidBlock mid_block_;
  GroupNorm conv_norm_out_;
  Conv2d conv_out_;
  std::optional<Conv2d> quant_conv_;
};

}  // namespace troupe::models::vae
