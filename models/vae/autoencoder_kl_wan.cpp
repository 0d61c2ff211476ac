#include "models/vae/autoencoder_kl_wan.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <sstream>
#include <stdexcept>
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

void FrameMemory::keep(const at::Tensor& frame) {
  before = std::move(last);
  last = frame;
}

CausalConv3d::CausalConv3d(const Loader& load, const std::string& name, std::int64_t in,
                           std::int64_t out, std::int64_t side, int* memories)
    : memory_(memories ? (*memories)++ : -1) {
  const at::Tensor weight = load.get(name + ".weight", {out, in, 3, side, side});
  const auto of_frame = [&](std::int64_t frame) {
    return weight.select(2, frame).contiguous(load.memory_format());
  };
  now_ = Conv2d(of_frame(2), load.get(name + ".bias", {out}));
  if (!memories) return;
  last_ = Conv2d(of_frame(1), {});
  before_ = Conv2d(of_frame(0), {});
}

at::Tensor CausalConv3d::operator()(const at::Tensor& x, FrameMemories& memories,
                                    const Pass& pass) const {
  const at::Tensor y = now_({x}, pass);
  if (memory_ < 0) return y;
  FrameMemory& memory = memories.at(memory_);
  if (memory.last.defined()) last_.add_to(y, {memory.last}, pass);
  if (memory.before.defined()) before_.add_to(y, {memory.before}, pass);
  memory.keep(x);
  return y;
}

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
                         std::int64_t out, int* memories)
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

WanCoder::KeptInput WanCoder::kept_input(const spec::VaeLayer& layer, bool doubles,
                                         at::Device device) {
  // Each channel is repeated as often as fills the places of a channel that comes out: its two
  // frames, if frames are doubled, and the rows and columns of each.
  const std::int64_t grown = layer.scale_out / layer.scale_in;
  const std::int64_t places = layer.out * (doubles ? 2 : 1) * grown * grown;
  const at::Tensor from = at::arange(places, at::kLong)
                              .floor_divide(places / layer.in)
                              .view({layer.out, -1, grown * grown});
  KeptInput made{.channels = {}, .repeat = grown};
  for (std::int64_t half = 0; half < from.size(1); ++half)
    made.channels.push_back(from.select(1, half).flatten().to(device));
  return made;
}

at::Tensor WanCoder::mean_of(const KeptMean& layer, const Frame& frame, const State& state) {
  // Channels, then frames, rows and columns of a mean: AvgDown3D of diffusers.
  at::Tensor x = at::pixel_unshuffle(frame.kept, layer.side);
  if (layer.of_two_frames) {
    const at::Tensor before =
        layer.memory >= 0 ? state.memories.at(layer.memory).before : at::Tensor();
    const at::Tensor other =
        before.defined() ? at::pixel_unshuffle(before, layer.side) : at::zeros_like(x);
    const auto split = [&](const at::Tensor& of) {
      return of.view({1, frame.kept.size(1), 1, -1, x.size(2), x.size(3)});
    };
    x = at::cat({split(other.contiguous()), split(x.contiguous())}, 2).flatten(1, 3);
  }
  return x.contiguous().view({1, layer.channels, -1, x.size(2), x.size(3)}).mean(2);
}

WanCoder::WanCoder(const spec::WanVaeSpec& spec, spec::VaeHalf half, const Loader& load)
    : decodes_(half == spec::VaeHalf::decoder), patch_size_(spec.patch_size) {
  using Kind = spec::VaeLayer::Kind;
  ChannelNorm norm;
  bool doubles = false, halves = false;  // since what was kept last
  std::size_t keep = 0;                  // number of that layer
  int* const memories = spec.one_frame ? nullptr : &memories_;
  for (const auto& layer : spec::layers_of(spec, half)) {
    switch (layer.kind) {
      case Kind::norm:
        norm = ChannelNorm(load, layer.name, {layer.in, 1, 1, 1});
        break;
      case Kind::residual:
        layers_.emplace_back(std::in_place_type<WanResidual>, load, layer.name, layer.in, layer.out,
                             memories);
        break;
      case Kind::attention:
        layers_.emplace_back(std::in_place_type<WanAttention>, load, layer.name, layer.in);
        break;
      case Kind::upsample:
        layers_.emplace_back(
            FrameConvolution{Conv2d(load, layer.name, layer.in, layer.out, layer.side), 2});
        break;
      case Kind::downsample:
        layers_.emplace_back(
            FrameConvolution{Conv2d(load, layer.name, layer.in, layer.out, layer.side, 2)});
        break;
      case Kind::kept:
        doubles = halves = false;
        keep = layers_.size();
        layers_.emplace_back(Keep{});
        break;
      case Kind::added:
        if (decodes_) {
          layers_.emplace_back(kept_input(layer, doubles, load.device()));
          break;
        }
        if (halves) std::get<Keep>(layers_[keep]).memory = memories ? memories_++ : -1;
        layers_.emplace_back(KeptMean{halves, std::get<Keep>(layers_[keep]).memory,
                                      layer.scale_in / layer.scale_out, layer.out});
        break;
      case Kind::doubled_frames:
        doubles = true;
        if (spec.one_frame) break;
        layers_.emplace_back(
            DoubledFrames{CausalConv3d(load, layer.name, layer.in, 2 * layer.out, 1, memories)});
        break;
      case Kind::halved_frames:
        halves = true;
        if (spec.one_frame) break;
        layers_.emplace_back(
            HalvedFrames{CausalConv3d(load, layer.name, layer.in, layer.out, 1, memories)});
        break;
      case Kind::convolution:
        if (layer.side == 1) {
          layers_.emplace_back(FrameConvolution{pointwise(load, layer.name, layer.in, layer.out)});
        } else {
          layers_.emplace_back(
              TimeConvolution{std::exchange(norm, {}),
                              CausalConv3d(load, layer.name, layer.in, layer.out, 3, memories)});
        }
        break;
    }
  }
}

void WanCoder::push(at::Tensor x, State& state, const Pass& pass, const Tick& tick,
                    const FrameSink& sink) const {
  // A position's channels are columns, then rows of each color.
  if (!decodes_ && patch_size_ > 1)
    x = at::pixel_unshuffle(x, patch_size_)
            .contiguous()
            .view({1, x.size(1), patch_size_, patch_size_, x.size(2) / patch_size_,
                   x.size(3) / patch_size_})
            .transpose(2, 3)
            .flatten(1, 3)
            .contiguous(x.suggest_memory_format());
  run(0, {std::move(x), {}}, state, pass, tick, sink);
  state.first = false;
}

void WanCoder::run(std::size_t first, Frame frame, State& state, const Pass& pass, const Tick& tick,
                   const FrameSink& sink) const {
  at::Tensor& x = frame.x;
  for (std::size_t i = first; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (const auto* single = std::get_if<FrameConvolution>(&layer)) {
      x = single->conv({.x = x, .repeat = single->repeat}, pass);
    } else if (const auto* convolution = std::get_if<TimeConvolution>(&layer)) {
      if (convolution->norm.weight.defined()) x = convolution->norm.with_silu(x);
      x = convolution->conv(x, state.memories, pass);
    } else if (const auto* residual = std::get_if<WanResidual>(&layer)) {
      x = (*residual)(x, state.memories, pass);
    } else if (const auto* attention = std::get_if<WanAttention>(&layer)) {
      x = (*attention)(x, pass);
    } else if (const auto* keep = std::get_if<Keep>(&layer)) {
      frame.kept = x;
      if (keep->memory >= 0) state.memories.at(keep->memory).keep(x);
    } else if (const auto* mean = std::get_if<KeptMean>(&layer)) {
      x = x + mean_of(*mean, frame, state);
    } else if (const auto* halved = std::get_if<HalvedFrames>(&layer)) {
      FrameMemory& memory = state.memories.at(halved->conv.memory());
      const std::int64_t number = memory.seen++;
      if (number % 2 == 1) return memory.keep(x);
      if (number == 0) {
        memory.keep(x);
      } else {
        x = halved->conv(x, state.memories, pass);
      }
    } else if (const auto* input = std::get_if<KeptInput>(&layer)) {
      // The first latent frame stays one frame, which is the second of two.
      const at::Tensor& from = state.first
                                   ? input->channels.back()
                                   : input->channels.at(frame.half % input->channels.size());
      x = x + at::pixel_shuffle(frame.kept.index_select(1, from), input->repeat);
    } else if (!state.first) {
      // The first latent frame stays one frame, and later ones do not see it here.
      const auto& doubled = std::get<DoubledFrames>(layer);
      const auto halves = doubled.conv(x, state.memories, pass).chunk(2, 1);
      for (std::size_t half = 0; half < halves.size(); ++half)
        run(i + 1, {halves[half].contiguous(x.suggest_memory_format()), frame.kept, half}, state,
            pass, tick, sink);
      return;
    }
    tick();
  }
  if (!decodes_) return sink(x);
  x.clamp_(-1, 1);
  if (patch_size_ == 1) return sink(x);
  // A position's channels are columns, then rows of each color.
  const auto square = x.view({1, -1, patch_size_, patch_size_, x.size(2), x.size(3)});
  sink(at::pixel_shuffle(square.transpose(2, 3).flatten(1, 3), patch_size_));
}

}  // namespace troupe::models::vae

namespace troupe::models {
namespace {

at::Tensor by_channel(const std::vector<double>& values, at::Device device) {
  return at::tensor(values, at::kDouble).to(at::kFloat).view({1, -1, 1, 1}).to(device);
}

}  // namespace

AutoencoderKLWan::AutoencoderKLWan(const spec::WanVaeSpec& spec, const WeightStore& weights,
                                   at::Device device, spec::VaeHalf half)
    : spec_(spec),
      device_(device),
      memory_format_(vae::Loader(weights, at::kFloat, device).memory_format()),
      chunk_bytes_(device.is_cpu() ? kCpuChunk : kGpuChunk),
      coder_(spec, half, vae::Loader(weights, at::kFloat, device)),
      mean_(by_channel(spec.latents_mean, device)),
      inverse_std_(by_channel(spec.latents_std, device).reciprocal()) {}

void AutoencoderKLWan::decode_rows(const at::Tensor& latents, std::int64_t frames, HaloPort& port,
                                   const vae::Tick& tick, const FrameSink& sink) const {
  if (latents.dim() != 4 || latents.size(1) != spec_.z_dim || frames < 1 ||
      (spec_.one_frame && frames > 1) || latents.size(2) < frames ||
      latents.size(2) % frames != 0 || latents.size(3) < 1) {
    std::ostringstream text;
    text << "[AutoencoderKLWan] latents " << latents.sizes() << " are not [B, " << spec_.z_dim
         << ", " << frames << " · h, w]";
    throw std::invalid_argument(text.str());
  }
  const c10::InferenceMode no_grad;
  const std::int64_t height = latents.size(2) / frames;
  const RowRun rows = RowShards(height, port.shards()).of(port.shard());
  const Pass pass{port, chunk_bytes_};
  const vae::Tick each = tick ? tick : [] {};
  for (std::int64_t video = 0; video < latents.size(0); ++video) {
    auto state = coder_.start();
    std::int64_t number = 0;
    for (std::int64_t frame = 0; frame < frames; ++frame) {
      const at::Tensor own =
          latents.narrow(0, video, 1).narrow(2, frame * height + rows.begin, rows.size());
      const at::Tensor unscaled = own.to(device_, at::kFloat).div(inverse_std_).add_(mean_);
      coder_.push(unscaled.contiguous(memory_format_), state, pass, each,
                  [&](const at::Tensor& pixels) { sink(video, number++, pixels); });
    }
  }
}

at::Tensor AutoencoderKLWan::encode_rows(std::int64_t frames, const FrameSource& source,
                                         HaloPort& port, const vae::Tick& tick) const {
  const c10::InferenceMode no_grad;
  const std::int64_t scale = spec_.scale_factor();
  const Pass pass{port, chunk_bytes_};
  const vae::Tick each = tick ? tick : [] {};
  auto state = coder_.start();
  std::vector<at::Tensor> means;
  for (std::int64_t frame = 0; frame < frames; ++frame) {
    const at::Tensor pixels = source(frame);
    if (pixels.dim() != 4 || pixels.size(0) != 1 || pixels.size(1) != spec_.out_channels ||
        pixels.size(2) < scale || pixels.size(2) % scale != 0 || pixels.size(3) < scale ||
        pixels.size(3) % scale != 0) {
      std::ostringstream text;
      text << "[AutoencoderKLWan] a frame " << pixels.sizes() << " is not [1, "
           << spec_.out_channels << ", " << scale << " · h, " << scale << " · w]";
      throw std::invalid_argument(text.str());
    }
    const RowRun rows = RowShards(pixels.size(2) / scale, port.shards()).of(port.shard());
    coder_.push(pixels.narrow(2, rows.begin * scale, rows.size() * scale)
                    .to(device_, at::kFloat)
                    .contiguous(memory_format_),
                state, pass, each, [&](const at::Tensor& moments) {
                  means.push_back(moments.narrow(1, 0, spec_.z_dim).contiguous());
                });
  }
  return at::cat(means, 2).sub_(mean_).mul_(inverse_std_);
}

at::Tensor AutoencoderKLWan::encode(std::int64_t frames, const FrameSource& source,
                                    const vae::Tick& tick) const {
  WholePicture whole;
  return encode_rows(frames, source, whole, tick);
}

at::Tensor AutoencoderKLWan::decode(const at::Tensor& latents, std::int64_t frames,
                                    const vae::Tick& tick) const {
  WholePicture whole;
  return decode(latents, frames, whole, tick);
}

at::Tensor AutoencoderKLWan::decode(const at::Tensor& latents, std::int64_t frames, HaloPort& port,
                                    const vae::Tick& tick) const {
  std::vector<at::Tensor> videos;
  std::vector<at::Tensor> parts;
  std::int64_t current = 0;
  const auto finish = [&] {
    videos.push_back(at::cat(parts, 2));
    parts.clear();
  };
  decode_rows(latents, frames, port, tick,
              [&](std::int64_t video, std::int64_t, const at::Tensor& pixels) {
                if (video != current) finish();
                current = video;
                parts.push_back(pixels.contiguous());
              });
  finish();
  return at::cat(videos);
}

}  // namespace troupe::models
