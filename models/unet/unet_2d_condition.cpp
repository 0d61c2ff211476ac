#include "models/unet/unet_2d_condition.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>
#include <stdexcept>

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

// Channels of a skipped feature map behind the own ones.
void join(Features& x, const Features& skip) {
  for (size_t p = 0; p < x.patches.size(); ++p)
    x.patches[p] = at::cat({x.patches[p], skip.patches[p]}, 1);
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

UNet2DConditionModel::Layer UNet2DConditionModel::make_layer(const Builder& build,
                                                             const std::string& block,
                                                             std::int64_t i, std::int64_t in,
                                                             const spec::UNetLevel& level,
                                                             std::int64_t transformers) const {
  Layer layer{ResnetBlock2D(build, block + "resnets." + std::to_string(i), in, level.channels,
                            spec_.time_embed_dim()),
              std::nullopt};
  if (transformers > 0) {
    layer.attention.emplace(build, block + "attentions." + std::to_string(i), level.channels,
                            level.heads, transformers, spec_.cross_attention_dim,
                            spec_.use_linear_projection);
  }
  return layer;
}

UNet2DConditionModel::UNet2DConditionModel(const spec::UNetSpec& spec, const WeightStore& weights,
                                           at::ScalarType dtype, at::Device device,
                                           vae::Loader::Get get, kernels::WeightType products,
                                           PackedOf packed)
    : spec_(spec), dtype_(dtype), device_(device) {
  spec::check_tensors(weights.index(), spec::expected_tensors(spec_),
                      [](std::string_view) { return false; });
  const vae::Loader load(weights, dtype, device, std::move(get));
  kernels::require_weight_type(products, device);
  const Builder build{load,     sites_,       spec_.norm_num_groups, spec_.norm_eps,
                      products, saved_bytes_, std::move(packed)};
  const auto& levels = spec_.levels;
  const std::int64_t time = spec_.time_embed_dim();
  const std::int64_t first = levels.front().channels;
  ends_.emplace_back(build, "conv_in", spec_.in_channels, first, Conv2d::Way::level, false);
  time_embedding_ = {linear_of(load, "time_embedding.linear_1", first, time),
                     linear_of(load, "time_embedding.linear_2", time, time)};
  if (spec_.addition_time_embed_dim > 0) {
    add_embedding_ = {linear_of(load, "add_embedding.linear_1",
                                spec_.projection_class_embeddings_input_dim, time),
                      linear_of(load, "add_embedding.linear_2", time, time)};
  }
  std::int64_t in = first;
  for (size_t l = 0; l < levels.size(); ++l) {
    const std::string name = "down_blocks." + std::to_string(l) + ".";
    Block block;
    for (std::int64_t i = 0; i < levels[l].layers; ++i) {
      block.layers.push_back(
          make_layer(build, name, i, in, levels[l], levels[l].down_transformers));
      in = levels[l].channels;
    }
    if (l + 1 < levels.size()) {
      block.resample.emplace(build, name + "downsamplers.0.conv", in, in, Conv2d::Way::down);
    }
    down_blocks_.push_back(std::move(block));
  }
  spec::UNetLevel mid = levels.back();
  mid.heads = spec_.mid_heads;
  mid_.push_back(make_layer(build, "mid_block.", 0, in, mid, spec_.mid_transformers));
  mid_.push_back(make_layer(build, "mid_block.", 1, in, mid, 0));
  for (size_t b = 0; b < levels.size(); ++b) {
    const size_t l = levels.size() - 1 - b;
    const std::string name = "up_blocks." + std::to_string(b) + ".";
    const std::int64_t out = levels[l].channels;
    Block block;
    for (std::int64_t i = 0; i <= levels[l].layers; ++i) {
      const bool last = i == levels[l].layers;
      const std::int64_t skip = last ? levels[l == 0 ? 0 : l - 1].channels : out;
      block.layers.push_back(
          make_layer(build, name, i, in + skip, levels[l], levels[l].up_transformers));
      in = out;
    }
    if (l > 0) block.resample.emplace(build, name + "upsamplers.0.conv", in, in, Conv2d::Way::up);
    up_blocks_.push_back(std::move(block));
  }
  conv_norm_out_.emplace_back(build, "conv_norm_out", in, spec_.norm_eps);
  ends_.emplace_back(build, "conv_out", in, spec_.out_channels, Conv2d::Way::level, false);
}

std::vector<TextKeys> UNet2DConditionModel::keys_of(const at::Tensor& states) const {
  if (states.dim() != 3 || states.size(2) != spec_.cross_attention_dim) {
    std::ostringstream text;
    text << "[unet] text states " << states.sizes() << ", must be [B, L, "
         << spec_.cross_attention_dim << "]";
    throw std::invalid_argument(text.str());
  }
  const at::Tensor own = states.to(device_, dtype_);
  std::vector<TextKeys> keys;
  const auto add = [&](const std::vector<Layer>& layers) {
    for (const Layer& layer : layers) {
      if (layer.attention) layer.attention->add_keys(own, keys);
    }
  };
  for (const Block& block : down_blocks_)
    add(block.layers);
  add(mid_);
  for (const Block& block : up_blocks_)
    add(block.layers);
  return keys;
}

at::Tensor UNet2DConditionModel::condition(double timestep, std::int64_t batch,
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

void UNet2DConditionModel::run(const Layer& layer, Features& x, const at::Tensor& condition,
                               const TextKeys*& keys, const Call& call) {
  x = layer.resnet(x, condition, call);
  if (layer.attention) x = (*layer.attention)(x, keys, call);
}

Call UNet2DConditionModel::call_of(const Features& outermost, UNetPort& port) const {
  Call call{port, {}};
  for (std::int64_t width = outermost.patches.front().size(3);
       call.widths.size() < spec_.levels.size(); width = halved(width)) {
    call.widths.push_back(width);
  }
  return call;
}

UNet2DConditionModel::Outer UNet2DConditionModel::enter(const std::vector<at::Tensor>& latents,
                                                        const at::Tensor& condition,
                                                        const std::vector<TextKeys>& text,
                                                        UNetPort& port) const {
  const auto runs = port.rows(0);
  bool fits = runs.size() == latents.size() && !runs.empty();
  for (size_t p = 0; fits && p < runs.size(); ++p) {
    fits = latents[p].dim() == 4 && latents[p].size(1) == spec_.in_channels &&
           latents[p].size(2) == runs[p].size() && latents[p].size(3) == latents[0].size(3) &&
           latents[p].size(0) == condition.size(0);
  }
  if (!fits || text.size() != static_cast<size_t>(sites_.attentions)) {
    throw std::invalid_argument("[unet] latents, condition or text do not fit the port's " +
                                std::to_string(runs.size()) + " patches");
  }
  const auto format =
      device_.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Features x{{}, 0};
  for (const at::Tensor& patch : latents)
    x.patches.push_back(patch.to(device_, dtype_).contiguous(format));
  const Call call = call_of(x, port);
  const TextKeys* keys = text.data();
  x = ends_[0](x, call);
  Outer outer{x, {}};
  run(down_blocks_.front().layers.front(), x, condition, keys, call);
  outer.first = std::move(x);
  return outer;
}

Features UNet2DConditionModel::inner(const Outer& outer, const at::Tensor& condition,
                                     const std::vector<TextKeys>& text, UNetPort& port) const {
  const Call call = call_of(outer.first, port);
  const TextKeys* keys = text.data() + spec_.levels.front().down_transformers;
  Features x = outer.first;
  std::vector<Features> skips;
  for (const Block& block : down_blocks_) {
    for (const Layer& layer : block.layers) {
      if (&layer == &down_blocks_.front().layers.front()) continue;
      run(layer, x, condition, keys, call);
      skips.push_back(x);
    }
    if (block.resample) {
      x = (*block.resample)(x, call);
      skips.push_back(x);
    }
  }
  for (const Layer& layer : mid_)
    run(layer, x, condition, keys, call);
  for (const Block& block : up_blocks_) {
    for (const Layer& layer : block.layers) {
      if (skips.empty()) return x;
      join(x, skips.back());
      skips.pop_back();
      run(layer, x, condition, keys, call);
    }
    if (block.resample) x = (*block.resample)(x, call);
  }
  return x;
}

std::vector<at::Tensor> UNet2DConditionModel::leave(const Outer& outer, Features inner,
                                                    const at::Tensor& condition,
                                                    const std::vector<TextKeys>& text,
                                                    UNetPort& port) const {
  const Call call = call_of(inner, port);
  const TextKeys* keys = text.data() + text.size() - 2 * spec_.levels.front().up_transformers;
  Features x = std::move(inner);
  const auto& layers = up_blocks_.back().layers;
  const Features* skips[] = {&outer.first, &outer.entered};
  for (size_t i = 0; i < 2; ++i) {
    join(x, *skips[i]);
    run(layers[layers.size() - 2 + i], x, condition, keys, call);
  }
  return ends_[1](conv_norm_out_[0](x, call, true), call).patches;
}

std::vector<at::Tensor> UNet2DConditionModel::operator()(const std::vector<at::Tensor>& latents,
                                                         const at::Tensor& condition,
                                                         const std::vector<TextKeys>& text,
                                                         UNetPort& port) const {
  const Outer outer = enter(latents, condition, text, port);
  return leave(outer, inner(outer, condition, text, port), condition, text, port);
}

at::Tensor UNet2DConditionModel::whole(const at::Tensor& latents, const at::Tensor& condition,
                                       const std::vector<TextKeys>& text) const {
  LocalExchange alone(1);
  PatchPort port(PatchCuts(latents.size(2), 1, levels()), alone);
  return (*this)({latents}, condition, text, port).front();
}

}  // namespace troupe::models::unet
