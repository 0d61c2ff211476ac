#include "models/unet/way_down.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "models/unet/patch_port.h"

namespace troupe::models::unet {
namespace {

constexpr double kMaxPeriod = 10000;

kernels::Linear linear_of(const vae::Loader& load, const std::string& name, std::int64_t in,
                          std::int64_t out) {
  return kernels::Linear(load.get(name + ".weight", {out, in}), load.get(name + ".bias", {out}));
}

at::Tensor embedded(const std::vector<kernels::Linear>& layers, const at::Tensor& x) {
  return layers[1](at::silu(layers[0](x)));
}

}  // namespace

at::Tensor timestep_embedding(const at::Tensor& times, std::int64_t width, bool flip_sin_to_cos,
                              std::int64_t freq_shift) {
  const std::int64_t half = width / 2;
  at::Tensor exponent = -std::log(kMaxPeriod) * at::arange(half, times.options().dtype(at::kFloat));
  exponent = exponent / static_cast<double>(half - freq_shift);
  const at::Tensor angles = times.to(at::kFloat).unsqueeze(1) * exponent.exp().unsqueeze(0);
  const at::Tensor sin = angles.sin();
  const at::Tensor cos = angles.cos();
  return flip_sin_to_cos ? at::cat({cos, sin}, 1) : at::cat({sin, cos}, 1);
}

void Layer::run(Features& x, const at::Tensor& condition, const TextKeys*& keys,
                const Call& call) const {
  x = resnet(x, condition, call);
  if (attention) x = (*attention)(x, keys, call);
}

void Layer::add_keys(const at::Tensor& text, std::vector<TextKeys>& keys) const {
  if (attention) attention->add_keys(text, keys);
}

Layer make_layer(const Builder& build, const spec::UNetSpec& spec, const std::string& block,
                 std::int64_t i, std::int64_t in, const spec::UNetLevel& level,
                 std::int64_t transformers) {
  Layer layer{ResnetBlock2D(build, block + "resnets." + std::to_string(i), in, level.channels,
                            spec.time_embed_dim()),
              std::nullopt};
  if (transformers > 0) {
    layer.attention.emplace(build, block + "attentions." + std::to_string(i), level.channels,
                            level.heads, transformers, spec.cross_attention_dim,
                            spec.use_linear_projection);
  }
  return layer;
}

WayDown::WayDown(const Builder& build, const spec::UNetSpec& spec, at::ScalarType dtype,
                 at::Device device)
    : spec_(spec),
      dtype_(dtype),
      device_(device),
      conv_in_(build, "conv_in", spec.in_channels, spec.levels.front().channels, Conv2d::Way::level,
               false) {
  const auto& levels = spec_.levels;
  const std::int64_t time = spec_.time_embed_dim();
  const std::int64_t first = levels.front().channels;
  time_embedding_ = {linear_of(build.load, "time_embedding.linear_1", first, time),
                     linear_of(build.load, "time_embedding.linear_2", time, time)};
  if (spec_.addition_time_embed_dim > 0) {
    add_embedding_ = {linear_of(build.load, "add_embedding.linear_1",
                                spec_.projection_class_embeddings_input_dim, time),
                      linear_of(build.load, "add_embedding.linear_2", time, time)};
  }
  std::int64_t in = first;
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const std::string name = "down_blocks." + std::to_string(l) + ".";
    Block block;
    for (std::int64_t i = 0; i < levels[l].layers; ++i) {
      block.layers.push_back(
          make_layer(build, spec_, name, i, in, levels[l], levels[l].down_transformers));
      in = levels[l].channels;
    }
    if (l + 1 < levels.size()) {
      block.resample.emplace(build, name + "downsamplers.0.conv", in, in, Conv2d::Way::down);
    }
    down_.push_back(std::move(block));
  }
  spec::UNetLevel mid = levels.back();
  mid.heads = spec_.mid_heads;
  mid_.push_back(make_layer(build, spec_, "mid_block.", 0, in, mid, spec_.mid_transformers));
  if (spec_.mid_transformers > 0)
    mid_.push_back(make_layer(build, spec_, "mid_block.", 1, in, mid, 0));
}

at::Tensor WayDown::own_states(const at::Tensor& states) const {
  if (states.dim() != 3 || states.size(2) != spec_.cross_attention_dim) {
    std::ostringstream text;
    text << "[unet] text states " << states.sizes() << ", must be [B, L, "
         << spec_.cross_attention_dim << "]";
    throw std::invalid_argument(text.str());
  }
  return states.to(device_, dtype_);
}

void WayDown::add_keys(const at::Tensor& text, std::vector<TextKeys>& keys) const {
  for (const Block& block : down_)
    for (const Layer& layer : block.layers)
      layer.add_keys(text, keys);
  for (const Layer& layer : mid_)
    layer.add_keys(text, keys);
}

at::Tensor WayDown::condition(double timestep, std::int64_t batch,
                              const std::optional<AddedCondition>& added) const {
  const auto floats = at::TensorOptions().dtype(at::kFloat).device(device_);
  const at::Tensor times = at::full({batch}, timestep, floats);
  at::Tensor sum =
      embedded(time_embedding_, timestep_embedding(times, spec_.levels.front().channels,
                                                   spec_.flip_sin_to_cos, spec_.freq_shift)
                                    .to(dtype_));
  if (!add_embedding_.empty()) {
    const std::int64_t width = spec_.projection_class_embeddings_input_dim;
    const bool fits =
        added && added->pooled.dim() == 2 && added->time_ids.dim() == 2 &&
        added->pooled.size(0) == batch && added->time_ids.size(0) == batch &&
        added->pooled.size(1) + added->time_ids.size(1) * spec_.addition_time_embed_dim == width;
    if (!fits) {
      throw std::invalid_argument(
          "[unet] needs pooled text [" + std::to_string(batch) + ", D] and time ids [" +
          std::to_string(batch) + ", n] with D + n * " +
          std::to_string(spec_.addition_time_embed_dim) + " = " + std::to_string(width));
    }
    const at::Tensor sizes =
        timestep_embedding(added->time_ids.to(floats).flatten(), spec_.addition_time_embed_dim,
                           spec_.flip_sin_to_cos, spec_.freq_shift)
            .view({batch, -1});
    sum = sum + embedded(add_embedding_, at::cat({added->pooled.to(floats), sizes}, 1).to(dtype_));
  }
  return at::silu(sum);
}

Call WayDown::call_of(const Features& outermost, UNetPort& port) const {
  Call call{port, {}};
  for (std::int64_t width = outermost.patches.front().size(3);
       call.widths.size() < spec_.levels.size(); width = halved(width)) {
    call.widths.push_back(width);
  }
  return call;
}

Features WayDown::enter(const std::vector<at::Tensor>& latents, const at::Tensor& condition,
                        UNetPort& port) const {
  const auto runs = port.rows(0);
  bool fits = runs.size() == latents.size() && !runs.empty();
  for (std::size_t p = 0; fits && p < runs.size(); ++p) {
    fits = latents[p].dim() == 4 && latents[p].size(1) == spec_.in_channels &&
           latents[p].size(2) == runs[p].size() && latents[p].size(3) == latents[0].size(3) &&
           latents[p].size(0) == condition.size(0);
  }
  if (!fits) {
    throw std::invalid_argument("[unet] latents or condition do not fit the port's " +
                                std::to_string(runs.size()) + " patches");
  }
  const auto format =
      device_.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Features x{{}, 0};
  for (const at::Tensor& patch : latents)
    x.patches.push_back(patch.to(device_, dtype_).contiguous(format));
  return conv_in_(x, call_of(x, port));
}

void WayDown::run_others(Features& x, const at::Tensor& condition, const TextKeys*& keys,
                         const Call& call, std::vector<Features>& values) const {
  for (const Block& block : down_) {
    for (const Layer& layer : block.layers) {
      if (&layer == &down_.front().layers.front()) continue;
      layer.run(x, condition, keys, call);
      values.push_back(x);
    }
    if (block.resample) {
      x = (*block.resample)(x, call);
      values.push_back(x);
    }
  }
}

void WayDown::run_middle(Features& x, const at::Tensor& condition, const TextKeys*& keys,
                         const Call& call) const {
  for (const Layer& layer : mid_)
    layer.run(x, condition, keys, call);
}

}  // namespace troupe::models::unet
