#include "models/vae/layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace troupe::models::vae {
namespace {

constexpr double kEpsilon = 1e-6;
/// Scores of as many queries as are computed at a time where a kernel holds them all.
constexpr std::int64_t kScores = std::int64_t{1} << 26;

}  // namespace

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto seen_by = [&](const at::Tensor& queries) {
    return at::scaled_dot_product_attention(queries.unsqueeze(1), k.unsqueeze(0).unsqueeze(0),
                                            v.unsqueeze(0).unsqueeze(0))
        .squeeze(1);
  };
  const std::int64_t each = std::max<std::int64_t>(1, kScores / k.size(0));
  if (q.size(1) <= each) return seen_by(q);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& queries : q.split(each, 1)) {
    parts.push_back(seen_by(queries));
  }
  return at::cat(parts, 1);
}

GroupNorm::GroupNorm(const Loader& load, const std::string& name, std::int64_t channels,
                     std::int64_t num_groups)
    : weight(load.get(name + ".weight", {channels})),
      bias(load.get(name + ".bias", {channels})),
      groups(num_groups) {}

ChannelAffine GroupNorm::over(const at::Tensor& x, const Pass& pass) const {
  return group_norm_affine(x, groups, weight, bias, kEpsilon, pass.port);
}

Prepare GroupNorm::with_silu(const at::Tensor& x, const Pass& pass) const {
  return [affine = over(x, pass)](const at::Tensor& rows) {
    at::Tensor y = apply_affine(rows, affine);
    return at::silu_(y);
  };
}

ResnetBlock2D::ResnetBlock2D(const Loader& load, const std::string& name, std::int64_t in,
                             std::int64_t out, std::int64_t num_groups)
    : norm1(load, name + ".norm1", in, num_groups),
      norm2(load, name + ".norm2", out, num_groups),
      conv1(load, name + ".conv1", in, out, 3),
      conv2(load, name + ".conv2", out, out, 3) {
  if (in != out) conv_shortcut.emplace(load, name + ".conv_shortcut", in, out, 1);
}

at::Tensor ResnetBlock2D::operator()(at::Tensor x, const Pass& pass) const {
  const at::Tensor h = conv1({x, norm1.with_silu(x, pass)}, pass);
  if (conv_shortcut) x = (*conv_shortcut)({x}, pass);
  conv2.add_to(x, {h, norm2.with_silu(h, pass)}, pass);
  return x;
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

at::Tensor Attention::operator()(at::Tensor x, const Pass& pass) const {
  const at::Tensor tokens =
      apply_affine(x, group_norm.over(x, pass)).flatten(2).transpose(1, 2).contiguous();
  const at::Tensor keys = pass.port.gather(at::linear(tokens, k, k_bias)[0]);
  const at::Tensor values = pass.port.gather(at::linear(tokens, v, v_bias)[0]);
  const at::Tensor seen = attend(at::linear(tokens, q, q_bias), keys, values);
  return x.add_(at::linear(seen, out, out_bias).transpose(1, 2).reshape(x.sizes()));
}

}  // namespace troupe::models::vae
