#include "models/unet/unet_2d_condition.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "models/unet/patch_port.h"

namespace troupe::models::unet {
namespace {

// Channels of a skipped feature map behind the own ones.
void join(Features& x, const Features& skip) {
  for (size_t p = 0; p < x.patches.size(); ++p)
    x.patches[p] = at::cat({x.patches[p], skip.patches[p]}, 1);
}

}  // namespace

void add(Features& x, const Features& more) {
  for (size_t p = 0; p < x.patches.size(); ++p)
    x.patches[p] = x.patches[p] + more.patches[p];
}

UNet2DConditionModel::UNet2DConditionModel(const spec::UNetSpec& spec, const WeightStore& weights,
                                           at::ScalarType dtype, at::Device device,
                                           vae::Loader::Get get, kernels::WeightType products,
                                           PackedOf packed)
    : spec_(spec) {
  spec::check_tensors(weights.index(), spec::expected_tensors(spec_),
                      [](std::string_view) { return false; });
  const vae::Loader load(weights, dtype, device, std::move(get));
  kernels::require_weight_type(products, device);
  const Builder build{load,     sites_,       spec_.norm_num_groups, spec_.norm_eps,
                      products, saved_bytes_, std::move(packed)};
  way_down_.emplace(build, spec_, dtype, device);
  const auto& levels = spec_.levels;
  std::int64_t in = levels.back().channels;
  for (size_t b = 0; b < levels.size(); ++b) {
    const size_t l = levels.size() - 1 - b;
    const std::string name = "up_blocks." + std::to_string(b) + ".";
    const std::int64_t out = levels[l].channels;
    Block block;
    for (std::int64_t i = 0; i <= levels[l].layers; ++i) {
      const bool last = i == levels[l].layers;
      const std::int64_t skip = last ? levels[l == 0 ? 0 : l - 1].channels : out;
      block.layers.push_back(
          make_layer(build, spec_, name, i, in + skip, levels[l], levels[l].up_transformers));
      in = out;
    }
    if (l > 0) block.resample.emplace(build, name + "upsamplers.0.conv", in, in, Conv2d::Way::up);
    up_blocks_.push_back(std::move(block));
  }
  conv_norm_out_.emplace(build, "conv_norm_out", in, spec_.norm_eps);
  conv_out_.emplace(build, "conv_out", in, spec_.out_channels, Conv2d::Way::level, false);
}

std::vector<TextKeys> UNet2DConditionModel::keys_of(const at::Tensor& states) const {
  const at::Tensor own = way_down_->own_states(states);
  std::vector<TextKeys> keys;
  way_down_->add_keys(own, keys);
  for (const Block& block : up_blocks_)
    for (const Layer& layer : block.layers)
      layer.add_keys(own, keys);
  return keys;
}

UNet2DConditionModel::Outer UNet2DConditionModel::enter(const std::vector<at::Tensor>& latents,
                                                        const at::Tensor& condition,
                                                        const std::vector<TextKeys>& text,
                                                        UNetPort& port) const {
  if (text.size() != static_cast<size_t>(sites_.attentions))
    throw std::invalid_argument("[unet] the text's keys do not fit: they are another model's");
  Features x = way_down_->enter(latents, condition, port);
  const TextKeys* keys = text.data();
  Outer outer{x, {}};
  way_down_->run_first(x, condition, keys, way_down_->call_of(x, port));
  outer.first = std::move(x);
  return outer;
}

Features UNet2DConditionModel::inner(const Outer& outer, const at::Tensor& condition,
                                     const std::vector<TextKeys>& text, UNetPort& port,
                                     const Residuals* residuals) const {
  const Call call = way_down_->call_of(outer.first, port);
  const TextKeys* keys = text.data() + spec_.levels.front().down_transformers;
  Features x = outer.first;
  std::vector<Features> skips;
  way_down_->run_others(x, condition, keys, call, skips);
  way_down_->run_middle(x, condition, keys, call);
  if (residuals != nullptr) {
    for (size_t i = 0; i < skips.size(); ++i)
      add(skips[i], residuals->down.at(kOuterValues + i));
    add(x, residuals->middle);
  }
  for (const Block& block : up_blocks_) {
    for (const Layer& layer : block.layers) {
      if (skips.empty()) return x;
      join(x, skips.back());
      skips.pop_back();
      layer.run(x, condition, keys, call);
    }
    if (block.resample) x = (*block.resample)(x, call);
  }
  return x;
}

std::vector<at::Tensor> UNet2DConditionModel::leave(const Outer& outer, Features inner,
                                                    const at::Tensor& condition,
                                                    const std::vector<TextKeys>& text,
                                                    UNetPort& port) const {
  const Call call = way_down_->call_of(inner, port);
  const TextKeys* keys =
      text.data() + text.size() - kOuterValues * spec_.levels.front().up_transformers;
  Features x = std::move(inner);
  const auto& layers = up_blocks_.back().layers;
  const Features* skips[kOuterValues] = {&outer.first, &outer.entered};
  for (size_t i = 0; i < kOuterValues; ++i) {
    join(x, *skips[i]);
    layers[layers.size() - kOuterValues + i].run(x, condition, keys, call);
  }
  return (*conv_out_)((*conv_norm_out_)(x, call, true), call).patches;
}

std::vector<at::Tensor> UNet2DConditionModel::operator()(const std::vector<at::Tensor>& latents,
                                                         const at::Tensor& condition,
                                                         const std::vector<TextKeys>& text,
                                                         UNetPort& port,
                                                         const Residuals* residuals) const {
  Outer outer = enter(latents, condition, text, port);
  Features x = inner(outer, condition, text, port, residuals);
  if (residuals != nullptr) {
    add(outer.entered, residuals->down.at(0));
    add(outer.first, residuals->down.at(1));
  }
  return leave(outer, std::move(x), condition, text, port);
}

at::Tensor UNet2DConditionModel::whole(const at::Tensor& latents, const at::Tensor& condition,
                                       const std::vector<TextKeys>& text) const {
  LocalExchange alone(1);
  PatchPort port(PatchCuts(latents.size(2), 1, levels()), alone);
  return (*this)({latents}, condition, text, port).front();
}

}  // namespace troupe::models::unet
