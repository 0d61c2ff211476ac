#include "models/vae/wan_decoder.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <utility>

namespace troupe::models::vae {
namespace {

constexpr double kLeastNorm = 1e-12;

/// `name.weight` [out, in, 1, 1, 1] as a convolution of one frame.
Conv2d pointwise(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out) {
  const at::Tensor weight = load.get(name + ".weight", {out, in, 1, 1, 1});
  return {weight.squeeze(2).contiguous(load.memory_format()), load.get(name + ".bias", {out})};
}

}  // namespace

ChannelNorm::ChannelNorm(const Loader& load, const std::string& name,
                         std::vector<std::int64_t> shape)
    : weight((load.get(name + ".gamma", shape) * std::sqrt(static_cast<double>(shape[0])))
                 .view({1, -1, 1, 1})) {}

at::Tensor ChannelNorm::operator()(const at::Tensor& x) const {
  const at::Tensor length = at::linalg_vector_norm(x, 2, at::IntArrayRef{1}, /*keepdim=*/true);
  return x.div(length.clamp_min_(kLeastNorm)).mul_(weight);
}

at::Tensor ChannelNorm::with_silu(const at::Tensor& x) const {
  at::Tensor y = (*this)(x);
  return at::silu_(y);
}

WanResidual::WanResidual(const Loader& load, const std::string& name, std::int64_t in,
                         std::int64_t out, int& memories)
    : norm1(load, name + ".norm1", {in, 1, 1, 1}),
      norm2(load, name + ".norm2", {out, 1, 1, 1}),
      conv1(load, name + ".conv1", in, out, 3, memories),
      conv2(load, name + ".conv2", out, out, 3, memories) {
  if (in != out) conv_shortcut = pointwise(load, name + ".conv_shortcut", in, out);
}

at::Tensor WanResidual::operator()(const at::Tensor& x, FrameMemories& memories,
                                   const Pass& pass) const {
  at::Tensor h = conv1(norm1.with_silu(x), memories, pass);
  h = conv2(norm2.with_silu(h), memories, pass);
  if (!conv_shortcut) return h.add_(x);
  conv_shortcut->add_to(h, {x}, pass);
  return h;
}

WanAttention::WanAttention(const Loader& load, const std::string& name, std::int64_t channels)
    : norm(load, name + ".norm", {channels, 1, 1}),
      qkv(load.get(name + ".to_qkv.weight", {3 * channels, channels, 1, 1}).flatten(1)),
      qkv_bias(load.get(name + ".to_qkv.bias", {3 * channels})),
      out(load.get(name + ".proj.weight", {channels, channels, 1, 1}).flatten(1)),
      out_bias(load.get(name + ".proj.bias", {channels})) {}

at::Tensor WanAttention::operator()(const at::Tensor& x, const Pass& pass) const {
  const at::Tensor tokens = norm(x).flatten(2).transpose(1, 2).contiguous();
  const auto parts = at::linear(tokens, qkv, qkv_bias).chunk(3, 2);
  const at::Tensor keys = pass.port.gather(parts[1][0].contiguous());
  const at::Tensor values = pass.port.gather(parts[2][0].contiguous());
  const at::Tensor seen = attend(parts[0].contiguous(), keys, values);
  return x + at::linear(seen, out, out_bias).transpose(1, 2).reshape(x.sizes());
}

WanDecoder::WanDecoder(const spec::WanVaeSpec& spec, const Loader& load)
    : post_quant_conv_(pointwise(load, "post_quant_conv", spec.z_dim, spec.z_dim)),
      conv_in_(load, "decoder.conv_in", spec.z_dim, spec.inner_channels(), 3, memories_) {
  const std::int64_t inner = spec.inner_channels();
  for (const char* number : {"0", "1"}) {
    mid_.emplace_back(load, std::string("decoder.mid_block.resnets.") + number, inner, inner,
                      memories_);
  }
  attention_.emplace(load, "decoder.mid_block.attentions.0", inner);
  for (const auto& of : spec.up_blocks()) {
    const std::string name = "decoder.up_blocks." + std::to_string(up_blocks_.size());
    UpBlock& block = up_blocks_.emplace_back();
    for (std::int64_t i = 0; i <= spec.num_res_blocks; ++i) {
      block.resnets.emplace_back(load, name + ".resnets." + std::to_string(i),
                                 i == 0 ? of.in : of.out, of.out, memories_);
    }
    const std::string up = name + ".upsamplers.0.";
    if (of.doubles_frames)
      block.time_conv.emplace(load, up + "time_conv", of.out, 2 * of.out, 1, memories_);
    if (of.upsamples) block.resample.emplace(load, up + "resample.1", of.out, of.out / 2, 3);
  }
  const std::int64_t width = spec.up_blocks().back().out;
  norm_out_ = ChannelNorm(load, "decoder.norm_out", {width, 1, 1, 1});
  conv_out_ = CausalConv3d(load, "decoder.conv_out", width, spec.out_channels, 3, memories_);
}

void WanDecoder::push(at::Tensor x, State& state, const Pass& pass, const Tick& tick,
                      const FrameSink& sink) const {
  x = conv_in_(post_quant_conv_({x}, pass), state.memories, pass);
  x = mid_[0](x, state.memories, pass);
  x = (*attention_)(x, pass);
  x = mid_[1](x, state.memories, pass);
  tick();
  rise(0, std::move(x), state, pass, tick, sink);
  state.first = false;
}

void WanDecoder::rise(std::size_t number, at::Tensor x, State& state, const Pass& pass,
                      const Tick& tick, const FrameSink& sink) const {
  if (number == up_blocks_.size()) {
    sink(conv_out_(norm_out_.with_silu(x), state.memories, pass).clamp_(-1, 1));
    tick();
    return;
  }
  const UpBlock& block = up_blocks_[number];
  for (const WanResidual& resnet : block.resnets) {
    x = resnet(x, state.memories, pass);
    tick();
  }
  const auto go_on = [&](const at::Tensor& frame) {
    at::Tensor risen = block.resample ? (*block.resample)({.x = frame, .repeat = 2}, pass) : frame;
    rise(number + 1, std::move(risen), state, pass, tick, sink);
  };
  // The first latent frame stays one frame, and later ones do not see it here.
  if (!block.time_conv || state.first) return go_on(x);
  const auto frames = (*block.time_conv)(x, state.memories, pass).chunk(2, 1);
  for (const at::Tensor& frame : frames)
    go_on(frame.contiguous(x.suggest_memory_format()));
}

}  // namespace troupe::models::vae
