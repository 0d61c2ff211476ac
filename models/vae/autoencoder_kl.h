#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/layers.h"

namespace troupe::models {

/// Called as blocks finish, with how many of how many are done.
using VaeProgress = std::function<void(int done, int total)>;

/// The decoder of diffusers' AutoencoderKL.
class AutoencoderKL {
 public:
  /// Loads the decoder and the convolution before it, nothing of the encoder. Throws
  /// std::runtime_error naming the tensor that is missing or misshapen.
  AutoencoderKL(const spec::VaeSpec& spec, const WeightStore& weights, at::ScalarType dtype,
                at::Device device);

  /// Final latents [B, latent_channels, h, w], as the sampler leaves them, to pictures
  /// [B, out_channels, h·f, w·f] around [-1, 1] in the decoder's dtype, f = spec.scale_factor().
  /// Divides by the scaling factor itself. Pictures are decoded one at a time: peak memory is that
  /// of one, and none depends on its neighbours in the batch, by so much as rounding.
  /// Throws std::invalid_argument for another shape; what `progress` throws ends the decoding.
  at::Tensor decode(const at::Tensor& latents, const VaeProgress& progress = nullptr) const;

  /// The dtype that a pipeline running in `model` decodes in: float32 instead of float16 where the
  /// checkpoint asks for it.
  static at::ScalarType decode_dtype(const spec::VaeSpec& spec, at::ScalarType model);

  /// Steps that `progress` counts for one picture.
  int blocks() const;

 private:
  struct UpBlock {
    std::vector<vae::ResnetBlock2D> resnets;
    std::optional<vae::Upsample2D> upsampler;
  };
  at::Tensor decode_one(const at::Tensor& latents, const std::function<void()>& tick) const;

  spec::VaeSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  at::MemoryFormat memory_format_;
  std::optional<vae::Conv2d> post_quant_conv_;
  vae::Conv2d conv_in_;
  std::vector<vae::ResnetBlock2D> mid_resnets_;
  std::optional<vae::Attention> mid_attention_;
  std::vector<UpBlock> up_blocks_;
  vae::GroupNorm conv_norm_out_;
  vae::Conv2d conv_out_;
};

}  // namespace troupe::models
