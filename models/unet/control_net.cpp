#include "models/unet/control_net.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string_view>
#include <utility>

namespace troupe::models::unet {

ControlNetModel::ControlNetModel(const spec::ControlNetSpec& spec, const WeightStore& weights,
                                 at::ScalarType dtype, at::Device device, vae::Loader::Get get,
                                 kernels::WeightType products,
                                 UNet2DConditionModel::PackedOf packed)
    : spec_(spec), dtype_(dtype), device_(device) {
  spec::check_tensors(weights.index(), spec::expected_tensors(spec_),
                      [](std::string_view) { return false; });
  const vae::Loader load(weights, dtype, device, std::move(get));
  kernels::require_weight_type(products, device);
  const spec::UNetSpec& network = spec_.network;
  const Builder build{load,     sites_,       network.norm_num_groups, network.norm_eps,
                      products, saved_bytes_, std::move(packed)};
  way_down_.emplace(build, network, dtype, device);
  const auto convolution = [&](const std::string& name, std::int64_t in, std::int64_t out,
                               std::int64_t side, std::int64_t stride) {
    return Convolution{load.get_kernel(name + ".weight", {out, in, side, side}),
                       load.get(name + ".bias", {out}), stride};
  };
  const std::string embedding = "controlnet_cond_embedding.";
  const auto& widths = spec_.embedding_widths;
  embedding_.push_back(convolution(embedding + "conv_in", spec::ControlNetSpec::kPictureChannels,
                                   widths.front(), 3, 1));
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string blocks = embedding + "blocks.";
    embedding_.push_back(convolution(blocks + std::to_string(2 * i), widths[i], widths[i], 3, 1));
    embedding_.push_back(
        convolution(blocks + std::to_string(2 * i + 1), widths[i], widths[i + 1], 3, 2));
  }
  const auto channels = spec_.residual_channels();
  embedding_.push_back(convolution(embedding + "conv_out", widths.back(), channels.front(), 3, 1));
  for (std::size_t i = 0; i < channels.size(); ++i)
    residuals_.push_back(
        convolution("controlnet_down_blocks." + std::to_string(i), channels[i], channels[i], 1, 1));
  residuals_.push_back(convolution("controlnet_mid_block", channels.back(), channels.back(), 1, 1));
}

at::Tensor ControlNetModel::embed(const at::Tensor& picture,
                                  const std::function<void()>& tick) const {
  at::Tensor x = picture.to(device_, dtype_);
  if (spec_.blue_first) x = x.flip({1});
  for (std::size_t i = 0; i < embedding_.size(); ++i) {
    tick();
    const auto& [weight, bias, stride] = embedding_[i];
    if (i > 0) at::silu_(x);
    x = at::conv2d(x, weight, bias, stride, /*padding=*/1);
  }
  return x;
}

std::vector<TextKeys> ControlNetModel::keys_of(const at::Tensor& states) const {
  std::vector<TextKeys> keys;
  if (sites_.attentions > 0) way_down_->add_keys(way_down_->own_states(states), keys);
  return keys;
}

Residuals ControlNetModel::operator()(const std::vector<at::Tensor>& latents,
                                      const std::vector<at::Tensor>& embedding,
                                      const at::Tensor& condition,
                                      const std::vector<TextKeys>& text, double scale,
                                      UNetPort& port) const {
  if (text.size() != static_cast<std::size_t>(sites_.attentions) ||
      embedding.size() != latents.size())
    throw std::invalid_argument("[control net] the text's keys or the embedding do not fit");
  Features x = way_down_->enter(latents, condition, port);
  const Call call = way_down_->call_of(x, port);
  for (std::size_t p = 0; p < x.patches.size(); ++p)
    x.patches[p] = x.patches[p] + embedding[p];
  const TextKeys* keys = text.data();
  Residuals all;
  all.down.push_back(x);
  way_down_->run_first(x, condition, keys, call);
  all.down.push_back(x);
  way_down_->run_others(x, condition, keys, call, all.down);
  way_down_->run_middle(x, condition, keys, call);
  all.middle = std::move(x);
  const auto project = [&](Features& value, const Convolution& by) {
    for (at::Tensor& patch : value.patches)
      patch = patch.size(2) > 0 ? at::conv2d(patch, by.weight, by.bias) * scale : patch;
  };
  for (std::size_t i = 0; i < all.down.size(); ++i)
    project(all.down[i], residuals_[i]);
  project(all.middle, residuals_.back());
  return all;
}

}  // namespace troupe::models::unet
