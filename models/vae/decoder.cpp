#include "models/vae/decoder.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

namespace troupe::models::vae {

Decoder::Decoder(const spec::VaeSpec& spec, const Loader& load)
    : conv_in_(load, "decoder.conv_in", spec.latent_channels, spec.block_out_channels.back(), 3),
      mid_block_(load, "decoder.mid_block", spec.block_out_channels.back(), spec.norm_num_groups,
                 spec.mid_block_add_attention) {
  const auto& widths = spec.block_out_channels;
  if (spec.use_post_quant_conv) {
    post_quant_conv_.emplace(load, "post_quant_conv", spec.latent_channels, spec.latent_channels,
                             1);
  }
  std::int64_t width = widths.back();
  for (size_t b = 0; b < widths.size(); ++b) {
    const std::int64_t out = widths[widths.size() - 1 - b];
    const std::string name = "decoder.up_blocks." + std::to_string(b);
    UpBlock& block = up_blocks_.emplace_back();
    for (std::int64_t i = 0; i <= spec.layers_per_block; ++i) {
      block.resnets.emplace_back(load, name + ".resnets." + std::to_string(i), width, out,
                                 spec.norm_num_groups);
      width = out;
    }
    if (b + 1 < widths.size()) {
      block.upsampler.emplace(load, name + ".upsamplers.0.conv", width, width, 3);
    }
  }
  conv_norm_out_ = GroupNorm(load, "decoder.conv_norm_out", width, spec.norm_num_groups);
  conv_out_ = Conv2d(load, "decoder.conv_out", width, spec.out_channels, 3);
}

int Decoder::blocks() const {
  int count = 2;  // the mid block, the way out
  for (const UpBlock& block : up_blocks_) {
    count += static_cast<int>(block.resnets.size()) + (block.upsampler ? 1 : 0);
  }
  return count;
}

at::Tensor Decoder::operator()(at::Tensor x, const Pass& pass, const Tick& tick) const {
  if (post_quant_conv_) x = (*post_quant_conv_)({x}, pass);
  x = conv_in_({x}, pass);
  x = mid_block_(std::move(x), pass);
  tick();
  for (const UpBlock& block : up_blocks_) {
    for (const ResnetBlock2D& resnet : block.resnets) {
      x = resnet(std::move(x), pass);
      tick();
    }
    if (block.upsampler) {
      x = (*block.upsampler)({.x = x, .repeat = 2}, pass);
      tick();
    }
  }
  x = conv_out_({x, conv_norm_out_.with_silu(x, pass)}, pass);
  tick();
  return x;
}

}  // namespace troupe::models::vae
