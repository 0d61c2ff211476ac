#include "models/encoders/clip_layers.h"

namespace troupe::models {
namespace {

constexpr double kQuickGelu = 1.702;

}  // namespace

std::string ClipLayers::name_of(const std::string& name) const {
  return weights_.contains(root_ + name) ? root_ + name : name;
}

at::Tensor ClipLayers::norm(const at::Tensor& states, const std::string& name) const {
  return at::layer_norm(states, {sizes_.width}, weight(name + ".weight"), weight(name + ".bias"),
                        sizes_.eps);
}

at::Tensor ClipLayers::linear(const at::Tensor& states, const std::string& name) const {
  return at::linear(states, weight(name + ".weight"), weight(name + ".bias"));
}

at::Tensor ClipLayers::attend(const at::Tensor& states, const std::string& prefix) const {
  const at::Tensor normal = norm(states, prefix + "layer_norm1");
  const auto heads = [&](const char* name) {
    return linear(normal, prefix + "self_attn." + name)
        .view({states.size(0), states.size(1), sizes_.heads, -1})
        .transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(
      heads("q_proj"), heads("k_proj"), heads("v_proj"), {}, 0.0, sizes_.causal);
  return states +
         linear(mixed.transpose(1, 2).reshape(states.sizes()), prefix + "self_attn.out_proj");
}

at::Tensor ClipLayers::block(const at::Tensor& states, const std::string& prefix) const {
  const at::Tensor seen = attend(states, prefix);
  const at::Tensor wide = linear(norm(seen, prefix + "layer_norm2"), prefix + "mlp.fc1");
  const at::Tensor active =
      sizes_.quick_gelu ? wide * at::sigmoid(kQuickGelu * wide) : at::gelu(wide);
  return seen + linear(active, prefix + "mlp.fc2");
}

}  // namespace troupe::models
