#include "models/spec/vae_layers.h"

#include <utility>

#include "base/format.h"
#include "models/spec/vae_spec.h"
#include "models/spec/wan_vae_spec.h"

namespace troupe::spec {
namespace {

/// Adds layers one behind the other.
class Walk {
 public:
  Walk(std::int64_t channels, std::int64_t scale) : channels_(channels), scale_(scale) {}

  void add(VaeLayer::Kind kind, std::string name, std::int64_t out) {
    add(kind, std::move(name), out, scale_);
  }
  void add(VaeLayer::Kind kind, std::string name, std::int64_t out, std::int64_t scale_out) {
    layers_.push_back({kind, std::move(name), channels_, out, scale_, scale_out});
    channels_ = out;
    scale_ = scale_out;
  }
  void pointwise(std::string name) {
    add(VaeLayer::Kind::convolution, std::move(name), channels_);
    layers_.back().side = 1;
  }
  void residuals(const std::string& prefix, std::int64_t out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      add(VaeLayer::Kind::residual, fmt::format("{}resnets.{}", prefix, i), out);
  }
  void middle(const std::string& prefix, bool with_attention) {
    add(VaeLayer::Kind::residual, prefix + "resnets.0", channels_);
    if (with_attention) add(VaeLayer::Kind::attention, prefix + "attentions.0", channels_);
    add(VaeLayer::Kind::residual, prefix + "resnets.1", channels_);
  }

  std::int64_t channels() const { return channels_; }
  std::int64_t scale() const { return scale_; }
  std::vector<VaeLayer> take() { return std::move(layers_); }

 private:
  std::int64_t channels_, scale_;
  std::vector<VaeLayer> layers_;
};

std::vector<VaeLayer> decoder(const VaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  const auto& widths = spec.block_out_channels;
  Walk walk(spec.latent_channels, 1);
  if (spec.use_post_quant_conv) walk.pointwise("post_quant_conv");
  walk.add(Kind::convolution, "decoder.conv_in", widths.back());
  walk.middle("decoder.mid_block.", spec.mid_block_add_attention);
  for (std::size_t block = 0; block < widths.size(); ++block) {
    const auto prefix = fmt::format("decoder.up_blocks.{}.", block);
    walk.residuals(prefix, widths[widths.size() - 1 - block], spec.layers_per_block + 1);
    if (block + 1 < widths.size())
      walk.add(Kind::upsample, prefix + "upsamplers.0.conv", walk.channels(), 2 * walk.scale());
  }
  walk.add(Kind::norm, "decoder.conv_norm_out", walk.channels());
  walk.add(Kind::convolution, "decoder.conv_out", spec.out_channels);
  return walk.take();
}

std::vector<VaeLayer> encoder(const VaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  const auto& widths = spec.block_out_channels;
  Walk walk(spec.in_channels, spec.scale_factor());
  walk.add(Kind::convolution, "encoder.conv_in", widths.front());
  for (std::size_t block = 0; block < widths.size(); ++block) {
    const auto prefix = fmt::format("encoder.down_blocks.{}.", block);
    walk.residuals(prefix, widths[block], spec.layers_per_block);
    if (block + 1 < widths.size())
      walk.add(Kind::downsample, prefix + "downsamplers.0.conv", walk.channels(), walk.scale() / 2);
  }
  walk.middle("encoder.mid_block.", spec.mid_block_add_attention);
  walk.add(Kind::norm, "encoder.conv_norm_out", walk.channels());
  walk.add(Kind::convolution, "encoder.conv_out", 2 * spec.latent_channels);
  if (spec.use_quant_conv) walk.pointwise("quant_conv");
  return walk.take();
}

}  // namespace

std::vector<VaeLayer> layers_of(const VaeSpec& spec, VaeHalf half) {
  return half == VaeHalf::decoder ? decoder(spec) : encoder(spec);
}

std::vector<VaeLayer> layers_of(const WanVaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  Walk walk(spec.z_dim, 1);
  walk.pointwise("post_quant_conv");
  walk.add(Kind::convolution, "decoder.conv_in", spec.base_dim * spec.dim_mult.back());
  walk.middle("decoder.mid_block.", true);
  for (std::size_t block = 0; block < spec.dim_mult.size(); ++block) {
    const std::size_t level = spec.dim_mult.size() - 1 - block;
    const auto prefix = fmt::format("decoder.up_blocks.{}.", block);
    walk.residuals(prefix, spec.base_dim * spec.dim_mult[level], spec.num_res_blocks + 1);
    if (level == 0) break;
    const auto up = prefix + "upsamplers.0.";
    if (spec.temporal_downsample[level - 1])
      walk.add(Kind::doubled_frames, up + "time_conv", walk.channels());
    walk.add(Kind::upsample, up + "resample.1", walk.channels() / 2, 2 * walk.scale());
  }
  walk.add(Kind::norm, "decoder.norm_out", walk.channels());
  walk.add(Kind::convolution, "decoder.conv_out", spec.out_channels);
  return walk.take();
}

}  // namespace troupe::spec
