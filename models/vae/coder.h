#pragma once
#include <variant>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/layers.h"

namespace troupe::models::vae {

/// One half of diffusers' AutoencoderKL with its 1×1 convolution at the latents' side.
class Coder {
 public:
  Coder(const spec::VaeSpec& spec, spec::VaeHalf half, const Loader& load);

  /// The decoder: unscaled latents [1, C, h, w] of this shard's rows to its rows of the picture.
  /// The encoder: pictures [1, C, H, W] of this shard's rows to its rows of the moments
  /// [1, 2·latents, h, w], means first, then log variances.
  at::Tensor operator()(at::Tensor x, const Pass& pass, const Tick& tick) const;
  /// Ticks of one call.
  int blocks() const { return static_cast<int>(layers_.size()); }

 private:
  struct Convolution {
    GroupNorm norm;  // with SiLU before it, where it has weights
    Conv2d conv;
    std::int64_t repeat = 1;
  };
  using Layer = std::variant<Convolution, ResnetBlock2D, Attention>;
  std::vector<Layer> layers_;
};

}  // namespace troupe::models::vae
