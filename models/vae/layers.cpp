#include "models/vae/layers.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "models/safetensors.h"
#include "models/vae/group_norm.h"

namespace troupe::models::vae {
namespace {
constexpr double kEpsilon = 1e-6;
}

at::Tensor Loader::get(const std::string& name, std::vector<std::int64_t> shape) const {
  return weights_.get(name, shape, dtype_, device_);
}

at::Tensor Loader::get_any(std::initializer_list<std::string> names,
                           std::vector<std::int64_t> shape) const {
  for (const std::string& name : names) {
    if (weights_.contains(name)) return get(name, std::move(shape));
  }
  return get(*names.begin(), std::move(shape));
}

at::Tensor Loader::get_kernel(const std::string& name, std::vector<std::int64_t> shape) const {
  return get(name, std::move(shape)).contiguous(memory_format());
}

at::MemoryFormat Loader::memory_format() const {
  return device_.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

Conv2d::Conv2d(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
               std::int64_t side)
    : weight(load.get_kernel(name + ".weight", {out, in, side, side})),
      bias(load.get(name + ".bias", {out})) {}

at::Tensor Conv2d::operator()(const at::Tensor& x) const {
  const std::int64_t padding = weight.size(2) / 2;
  return at::conv2d(x, weight, bias, 1, padding);
}

GroupNorm::GroupNorm(const Loader& load, const std::string& name, std::int64_t channels,
                     std::int64_t num_groups)
    : weight(load.get(name + ".weight", {channels})),
      bias(load.get(name + ".bias", {channels})),
      groups(num_groups) {}

at::Tensor GroupNorm::operator()(const at::Tensor& x) const {
  if (x.is_cpu() && x.size(0) == 1 && x.scalar_type() != at::kDouble) {
    return group_norm_channels_last(x, groups, weight, bias, kEpsilon);
  }
  return at::group_norm(x, groups, weight, bias, kEpsilon);
}

ResnetBlock2D::ResnetBlock2D(const Loader& load, const std::string& name, std::int64_t in,
                             std::int64_t out, std::int64_t num_groups)
    : norm1(load, name + ".norm1", in, num_groups),
      norm2(load, name + ".norm2", out, num_groups),
      conv1(load, name + ".conv1", in, out, 3),
      conv2(load, name + ".conv2", out, out, 3),
      has_shortcut(in != out) {
  if (has_shortcut) conv_shortcut = Conv2d(load, name + ".conv_shortcut", in, out, 1);
}

at::Tensor ResnetBlock2D::operator()(const at::Tensor& x) const {
  at::Tensor h = norm1(x);
  h = conv1(at::silu_(h));
  h = norm2(h);
  h = conv2(at::silu_(h));
  return h.add_(has_shortcut ? conv_shortcut(x) : x);
}

Attention::Attention(const Loader& load, const std::string& name, std::int64_t channels,
                     std::int64_t num_groups)
    : group_norm(load, name + ".group_norm", channels, num_groups) {
  const auto matrix = [&](const std::string& now, const std::string& before) {
    return load.get_any({name + now + ".weight", name + before + ".weight"}, {channels, channels});
  };
  const auto vector = [&](const std::string& now, const std::string& before) {
    return load.get_any({name + now + ".bias", name + before + ".bias"}, {channels});
  };
  q = matrix(".to_q", ".query");
  k = matrix(".to_k", ".key");
  v = matrix(".to_v", ".value");
  out = matrix(".to_out.0", ".proj_attn");
  q_bias = vector(".to_q", ".query");
  k_bias = vector(".to_k", ".key");
  v_bias = vector(".to_v", ".value");
  out_bias = vector(".to_out.0", ".proj_attn");
}

at::Tensor Attention::operator()(const at::Tensor& x) const {
  const at::Tensor tokens = group_norm(x).flatten(2).transpose(1, 2).contiguous();
  const auto head = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return at::linear(tokens, weight, bias).unsqueeze(1);
  };
  const at::Tensor seen =
      at::scaled_dot_product_attention(head(q, q_bias), head(k, k_bias), head(v, v_bias));
  const at::Tensor projected = at::linear(seen.squeeze(1), out, out_bias);
  return projected.transpose(1, 2).reshape(x.sizes()).add(x).contiguous(x.suggest_memory_format());
}

at::Tensor Upsample2D::operator()(const at::Tensor& x) const {
  return conv(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)}));
}

}  // namespace troupe::models::vae
