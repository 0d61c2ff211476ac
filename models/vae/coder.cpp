#include "models/vae/coder.h"

#include <ATen/ATen.h>

#include <utility>

namespace troupe::models::vae {

Coder::Coder(const spec::VaeSpec& spec, spec::VaeHalf half, const Loader& load) {
  using Kind = spec::VaeLayer::Kind;
  GroupNorm norm;
  for (const auto& layer : spec::layers_of(spec, half)) {
    switch (layer.kind) {
      case Kind::norm:
        norm = GroupNorm(load, layer.name, layer.in, spec.norm_num_groups);
        break;
      case Kind::residual:
        layers_.emplace_back(std::in_place_type<ResnetBlock2D>, load, layer.name, layer.in,
                             layer.out, spec.norm_num_groups);
        break;
      case Kind::attention:
        layers_.emplace_back(std::in_place_type<Attention>, load, layer.name, layer.in,
                             spec.norm_num_groups);
        break;
      case Kind::convolution:
      case Kind::upsample:
      case Kind::downsample:
      case Kind::doubled_frames: {
        Conv2d conv(load, layer.name, layer.in, layer.out, layer.side,
                    layer.kind == Kind::downsample ? 2 : 1);
        layers_.emplace_back(Convolution{std::exchange(norm, {}), std::move(conv),
                                         layer.kind == Kind::upsample ? 2 : 1});
        break;
      }
    }
  }
}

at::Tensor Coder::operator()(at::Tensor x, const Pass& pass, const Tick& tick) const {
  for (const Layer& layer : layers_) {
    if (const auto* convolution = std::get_if<Convolution>(&layer)) {
      const bool prepared = convolution->norm.weight.defined();
      const Prepare prepare = prepared ? convolution->norm.with_silu(x, pass) : nullptr;
      x = convolution->conv({.x = x, .prepare = prepare, .repeat = convolution->repeat}, pass);
    } else if (const auto* residual = std::get_if<ResnetBlock2D>(&layer)) {
      x = (*residual)(std::move(x), pass);
    } else {
      x = std::get<Attention>(layer)(std::move(x), pass);
    }
    tick();
  }
  return x;
}

}  // namespace troupe::models::vae
