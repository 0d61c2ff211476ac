#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/weight_loader.h"
#include "models/spec/pixart_spec.h"

namespace troupe::models {

/// Position features of one axis: [count, width] float32, sines first, computed in float64.
/// Positions run from 0 to base / interpolation whatever the count.
/// Source: get_2d_sincos_pos_embed of diffusers.
at::Tensor axis_positions(int64_t count, int64_t base, double interpolation, int64_t width);

/// Timestep, and resolution and aspect ratio where the model has them, to what modulates the
/// blocks. Source: AdaLayerNormSingle, PixArtAlphaCombinedTimestepSizeEmbeddings.
class PixArtCondition {
 public:
  struct Values {
    at::Tensor modulation;  ///< [B, 6, D]
    at::Tensor embedded;    ///< [B, D]
  };

  PixArtCondition(const spec::PixArtSpec& spec, const WeightLoader& weights);
  /// height and width in pixels.
  Values operator()(double timestep, int64_t batch, int64_t height, int64_t width,
                    at::ScalarType dtype, at::Device device) const;
  int64_t bytes() const;

 private:
  int64_t width_;
  bool sizes_;
  SiluMlp timestep_, resolution_, aspect_ratio_;
  kernels::Linear modulation_;
};

/// Latents to tokens with their positions, and text states to the width of the blocks.
class PixArtEmbedding {
 public:
  PixArtEmbedding(const spec::PixArtSpec& spec, const WeightLoader& weights);

  at::Tensor caption(const at::Tensor& states) const;
  at::Tensor tokens(const at::Tensor& latents, PictureSize size, TokenRows rows) const;
  int64_t bytes() const;

 private:
  spec::PixArtSpec spec_;
  kernels::Linear patch_, caption_first_, caption_second_;
};

}  // namespace troupe::models
