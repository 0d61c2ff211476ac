#include "models/encoders/qwen_text_model.h"

#include <algorithm>
#include <stdexcept>

namespace troupe::models {
namespace {

/// Turns channel i of a head with channel i + d/2. x [B, H, L, d]; cosines and sines [L, d].
at::Tensor turned(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const auto halves = x.chunk(2, -1);
  return x * cosine + at::cat({-halves[1], halves[0]}, -1) * sine;
}

}  // namespace

QwenTextModel::QwenTextModel(const spec::QwenTextSpec& spec, WeightStore weights,
                             at::ScalarType dtype, at::Device device)
    : spec_(spec), weights_(std::move(weights), dtype, device), dtype_(dtype) {
  spec::check_tensors(weights_.index(), spec::expected_tensors(spec_), [&](std::string_view name) {
    return spec::is_ignorable_qwen_tensor(spec_, name);
  });
}

const at::Tensor& QwenTextModel::weight(const std::string& name) const {
  return weights_.get(weights_.contains(name) ? name : spec::without_qwen_root(name));
}

at::Tensor QwenTextModel::norm(const at::Tensor& states, const std::string& name) const {
  const at::Tensor wide = states.to(at::kFloat);
  const at::Tensor inverse = (wide.pow(2).mean(-1, /*keepdim=*/true) + spec_.rms_norm_eps).rsqrt();
  return weight(name + ".weight") * (wide * inverse).to(dtype_);
}

at::Tensor QwenTextModel::linear(const at::Tensor& states, const std::string& name) const {
  return at::linear(states, weight(name + ".weight"));
}

at::Tensor QwenTextModel::attend(const at::Tensor& states, std::int64_t length,
                                 const std::string& prefix) const {
  const at::Tensor normal = norm(states, prefix + "input_layernorm");
  const std::string attention = prefix + "self_attn.";
  const auto heads = [&](const char* product) {
    at::Tensor all = linear(normal, attention + product);
    if (spec_.qkv_bias) all = all + weight(attention + product + ".bias");
    return all.view({states.size(0), states.size(1), -1, spec_.head_dim});
  };
  at::Tensor query = heads("q_proj"), key = heads("k_proj");
  if (spec_.qk_norm) {
    query = norm(query, attention + "q_norm");
    key = norm(key, attention + "k_norm");
  }
  // In float32, as the reference has them.
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const double base = spec_.rope_theta;
  const at::Tensor steps = at::arange(0, spec_.head_dim, 2, options) / spec_.head_dim;
  const at::Tensor angles =
      at::outer(at::arange(states.size(1), options), at::pow(base, steps).reciprocal());
  const at::Tensor both = at::cat({angles, angles}, -1).to(states.device());
  const at::Tensor cosine = at::cos(both).to(dtype_), sine = at::sin(both).to(dtype_);
  const auto seen = [length](const at::Tensor& of) { return of.slice(2, 0, length); };
  // Padding stands behind all that is seen, so that it sees all of that.
  const at::Tensor mixed = at::scaled_dot_product_attention(
      turned(query.transpose(1, 2), cosine, sine), seen(turned(key.transpose(1, 2), cosine, sine)),
      seen(heads("v_proj").transpose(1, 2)), {}, 0.0, /*is_causal=*/true, /*scale=*/std::nullopt,
      /*enable_gqa=*/spec_.num_key_value_heads != spec_.num_attention_heads);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({states.size(0), states.size(1), -1});
  return states + linear(joined, attention + "o_proj");
}

at::Tensor QwenTextModel::feed_forward(const at::Tensor& states, const std::string& prefix) const {
  const at::Tensor normal = norm(states, prefix + "post_attention_layernorm");
  at::Tensor wide = at::silu(linear(normal, prefix + "mlp.gate_proj"));
  wide.mul_(linear(normal, prefix + "mlp.up_proj"));
  return states + linear(wide, prefix + "mlp.down_proj");
}

std::vector<at::Tensor> QwenTextModel::encode_each(const std::vector<Text>& texts,
                                                   const Progress& progress) const {
  const std::string root = "model.embed_tokens.weight";
  const auto table = weights_.contains(root) ? root : spec::without_qwen_root(root);
  std::vector<at::Tensor> all;
  weights_.end_block();
  std::vector<std::vector<at::Tensor>> taken(texts.size());
  for (const auto& [ids, length] : texts) {
    if (ids.dim() != 2 || ids.size(0) != 1 || ids.scalar_type() != at::kLong || length < 1 ||
        length > ids.size(1))
      throw std::invalid_argument("[qwen_text_model] ids must be [1, L] int64, some no padding");
    all.push_back(weights_.rows(table, ids.cpu().flatten(), "qwen_text_model")
                      .view({ids.size(0), ids.size(1), spec_.hidden_size}));
  }
  const auto take = [&](int layers) {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (std::ranges::count(spec_.taken_layers, layers) > 0) taken[i].push_back(all[i]);
  };
  const auto total = static_cast<int>(spec_.used_layers());
  take(0);
  for (int block = 0; block < total; ++block) {
    const std::string prefix = spec::qwen_block_prefix(block);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = feed_forward(attend(all[i], texts[i].length, prefix), prefix);
    weights_.end_block();
    take(block + 1);
    if (progress) progress(block + 1, total);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = taken[i].empty() ? norm(all[i], "model.norm") : at::cat(taken[i], -1);
  weights_.end_block();
  return all;
}

}  // namespace troupe::models
