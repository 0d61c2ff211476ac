#include "models/vae/autoencoder_kl.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace troupe::models {

AutoencoderKL::AutoencoderKL(const spec::VaeSpec& spec, const WeightStore& weights,
                             at::ScalarType dtype, at::Device device)
    : spec_(spec), dtype_(dtype), device_(device) {
  const vae::Loader load(weights, dtype, device);
  memory_format_ = load.memory_format();
  const auto& widths = spec.block_out_channels;
  const std::int64_t latent = spec.latent_channels;
  const std::int64_t groups = spec.norm_num_groups;
  const std::string decoder = "decoder.";

  if (spec.use_post_quant_conv)
    post_quant_conv_.emplace(load, "post_quant_conv", latent, latent, 1);
  std::int64_t width = widths.back();
  conv_in_ = vae::Conv2d(load, decoder + "conv_in", latent, width, 3);
  for (int i = 0; i < 2; ++i) {
    mid_resnets_.emplace_back(load, decoder + "mid_block.resnets." + std::to_string(i), width,
                              width, groups);
  }
  if (spec.mid_block_add_attention) {
    mid_attention_.emplace(load, decoder + "mid_block.attentions.0", width, groups);
  }
  for (size_t b = 0; b < widths.size(); ++b) {
    const std::int64_t out = widths[widths.size() - 1 - b];
    const std::string name = decoder + "up_blocks." + std::to_string(b);
    UpBlock& block = up_blocks_.emplace_back();
    for (std::int64_t i = 0; i <= spec.layers_per_block; ++i) {
      block.resnets.emplace_back(load, name + ".resnets." + std::to_string(i), width, out, groups);
      width = out;
    }
    if (b + 1 < widths.size()) block.upsampler.emplace(load, name + ".upsamplers.0", width);
  }
  conv_norm_out_ = vae::GroupNorm(load, decoder + "conv_norm_out", width, groups);
  conv_out_ = vae::Conv2d(load, decoder + "conv_out", width, spec.out_channels, 3);
}

at::ScalarType AutoencoderKL::decode_dtype(const spec::VaeSpec& spec, at::ScalarType model) {
  return model == at::kHalf && spec.force_upcast ? at::kFloat : model;
}

int AutoencoderKL::blocks() const {
  int count = 2;  // the mid block, the way out
  for (const UpBlock& block : up_blocks_) {
    count += static_cast<int>(block.resnets.size()) + (block.upsampler ? 1 : 0);
  }
  return count;
}

at::Tensor AutoencoderKL::decode(const at::Tensor& latents, const VaeProgress& progress) const {
  if (latents.dim() != 4 || latents.size(1) != spec_.latent_channels || latents.numel() == 0) {
    std::ostringstream text;
    text << "[AutoencoderKL] latents " << latents.sizes() << " are not [B, "
         << spec_.latent_channels << ", h, w]";
    throw std::invalid_argument(text.str());
  }
  const c10::InferenceMode no_grad;
  const std::int64_t count = latents.size(0);
  const int total = static_cast<int>(count) * blocks();
  int done = 0;
  const auto tick = [&] {
    ++done;
    if (progress) progress(done, total);
  };
  std::vector<at::Tensor> pictures;
  for (std::int64_t i = 0; i < count; ++i) {
    pictures.push_back(decode_one(latents.narrow(0, i, 1), tick));
  }
  return count == 1 ? pictures.front() : at::cat(pictures);
}

at::Tensor AutoencoderKL::decode_one(const at::Tensor& latents,
                                     const std::function<void()>& tick) const {
  at::Tensor x = latents.to(device_, dtype_) / spec_.scaling_factor;
  if (spec_.shift_factor != 0) x = x + spec_.shift_factor;
  x = x.contiguous(memory_format_);
  if (post_quant_conv_) x = (*post_quant_conv_)(x);
  x = conv_in_(x);
  x = mid_resnets_[0](x);
  if (mid_attention_) x = (*mid_attention_)(x);
  x = mid_resnets_[1](x);
  tick();
  for (const UpBlock& block : up_blocks_) {
    for (const vae::ResnetBlock2D& resnet : block.resnets) {
      x = resnet(x);
      tick();
    }
    if (block.upsampler) {
      x = (*block.upsampler)(x);
      tick();
    }
  }
  x = conv_norm_out_(x);
  x = conv_out_(at::silu_(x)).contiguous();
  tick();
  return x;
}

}  // namespace troupe::models
