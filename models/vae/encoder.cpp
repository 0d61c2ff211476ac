#include "models/vae/encoder.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

namespace troupe::models::vae {

Encoder::Encoder(const spec::VaeSpec& spec, const Loader& load)
    : conv_in_(load, "encoder.conv_in", spec.in_channels, spec.block_out_channels.front(), 3),
      mid_block_(load, "encoder.mid_block", spec.block_out_channels.back(), spec.norm_num_groups,
                 spec.mid_block_add_attention),
      conv_norm_out_(load, "encoder.conv_norm_out", spec.block_out_channels.back(),
                     spec.norm_num_groups),
      conv_out_(load, "encoder.conv_out", spec.block_out_channels.back(), 2 * spec.latent_channels,
                3) {
  const auto& widths = spec.block_out_channels;
  std::int64_t width = widths.front();
  for (size_t b = 0; b < widths.size(); ++b) {
    const std::string name = "encoder.down_blocks." + std::to_string(b);
    DownBlock& block = down_blocks_.emplace_back();
    for (std::int64_t i = 0; i < spec.layers_per_block; ++i) {
      block.resnets.emplace_back(load, name + ".resnets." + std::to_string(i), width, widths[b],
                                 spec.norm_num_groups);
      width = widths[b];
    }
    if (b + 1 < widths.size()) {
      block.downsampler.emplace(load, name + ".downsamplers.0.conv", width, width, 3, 2);
    }
  }
  if (spec.use_quant_conv) {
    quant_conv_.emplace(load, "quant_conv", 2 * spec.latent_channels, 2 * spec.latent_channels, 1);
  }
}

int Encoder::blocks() const {
  int count = 2;  // the mid block, the way out
  for (const DownBlock& block : down_blocks_) {
    count += static_cast<int>(block.resnets.size()) + (block.downsampler ? 1 : 0);
  }
  return count;
}

at::Tensor Encoder::operator()(at::Tensor x, const Pass& pass, const Tick& tick) const {
  x = conv_in_({x}, pass);
  for (const DownBlock& block : down_blocks_) {
    for (const ResnetBlock2D& resnet : block.resnets) {
      x = resnet(std::move(x), pass);
      tick();
    }
    if (block.downsampler) {
      x = (*block.downsampler)({x}, pass);
      tick();
    }
  }
  x = mid_block_(std::move(x), pass);
  tick();
  x = conv_out_({x, conv_norm_out_.with_silu(x, pass)}, pass);
  if (quant_conv_) x = (*quant_conv_)({x}, pass);
  tick();
  return x;
}

}  // namespace troupe::models::vae
