#include "models/encoders/qwen_text_model.h"

#include <algorithm>
#include <stdexcept>

#include "models/encoders/rotary_halves.h"

namespace troupe::models {

QwenTextModel::QwenTextModel(const spec::QwenTextSpec& spec, WeightStore weights,
                             at::ScalarType dtype, at::Device device)
    : spec_(spec), weights_(std::move(weights), dtype, device), dtype_(dtype), device_(device) {
  spec::check_tensors(weights_.index(), spec::expected_tensors(spec_), [&](std::string_view name) {
    return spec::is_ignorable_qwen_tensor(spec_, name);
  });
}

std::string QwenTextModel::stored_name(const std::string& name) const {
  if (weights_.contains(name)) return name;
  for (const std::string& other : spec::other_qwen_names(name))
    if (weights_.contains(other)) return other;
  return name;
}

const at::Tensor& QwenTextModel::weight(const std::string& name) const {
  return weights_.get(stored_name(name));
}

at::Tensor QwenTextModel::norm(const at::Tensor& states, const std::string& name) const {
  const at::Tensor wide = states.to(at::kFloat);
  const at::Tensor inverse = (wide.pow(2).mean(-1, /*keepdim=*/true) + spec_.rms_norm_eps).rsqrt();
  return weight(name + ".weight") * (wide * inverse).to(dtype_);
}

at::Tensor QwenTextModel::linear(const at::Tensor& states, const std::string& name) const {
  return at::linear(states, weight(name + ".weight"));
}

QwenTextModel::Turns QwenTextModel::turns_at(const at::Tensor& positions) const {
  // In float32, as the reference has them.
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const double base = spec_.rope_theta;
  const at::Tensor steps = at::arange(0, spec_.head_dim, 2, options) / spec_.head_dim;
  const at::Tensor turns = at::pow(base, steps).reciprocal();
  at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * turns;  // [1 or 3, L, d / 2]
  if (angles.size(0) == 1) {
    angles = angles[0];
  } else {
    std::vector<at::Tensor> parts;
    std::int64_t begin = 0;
    for (std::int64_t axis = 0; axis < 3; ++axis) {
      const auto channels = spec_.vision->mrope_section[static_cast<std::size_t>(axis)];
      parts.push_back(angles[axis].narrow(1, begin, channels));
      begin += channels;
    }
    angles = at::cat(parts, 1);
  }
  const at::Tensor both = at::cat({angles, angles}, -1).to(device_);
  return {at::cos(both).to(dtype_), at::sin(both).to(dtype_)};
}

at::Tensor QwenTextModel::positions_of(const Text& text,
                                       const std::vector<VisionPatches>& pictures) const {
  const auto& vision = spec_.vision.value();
  const at::Tensor ids = text.ids.cpu().flatten();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  // Padding stays where it is, at 0.
  at::Tensor positions = at::zeros({3, ids.size(0)}, at::kLong);
  std::int64_t next = 0, token = 0;
  std::size_t seen = 0;
  while (token < text.length) {
    if (id[token] != vision.image_token_id) {
      positions.select(1, token++).fill_(next++);
      continue;
    }
    const std::int64_t rows = seen < pictures.size() ? pictures[seen].rows : 0;
    const std::int64_t columns = seen < pictures.size() ? pictures[seen].columns : 0;
    const std::int64_t down = rows / vision.spatial_merge_size;
    const std::int64_t across = columns / vision.spatial_merge_size;
    const std::int64_t end = token + down * across;
    const bool fits = seen < pictures.size() && end <= text.length &&
                      std::all_of(id + token, id + end,
                                  [&](std::int64_t one) { return one == vision.image_token_id; });
    if (!fits) {
      throw std::invalid_argument(
          "[qwen_text_model] the text has other places for pictures than the " +
          std::to_string(pictures.size()) + " that there are");
    }
    const at::Tensor own = positions.narrow(1, token, down * across).view({3, down, across});
    own.select(0, 0).fill_(next);
    own.select(0, 1).copy_(at::arange(next, next + down, at::kLong).unsqueeze(1));
    own.select(0, 2).copy_(at::arange(next, next + across, at::kLong).unsqueeze(0));
    next += std::max(down, across);
    token = end;
    ++seen;
  }
  if (seen < pictures.size())
    throw std::invalid_argument("[qwen_text_model] the text has no places for some pictures");
  return positions;
}

at::Tensor QwenTextModel::attend(const at::Tensor& states, std::int64_t length, const Turns& turns,
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
  const auto turned = [&](const at::Tensor& of) {
    return turned_halves(of.transpose(1, 2), turns.cosine, turns.sine);
  };
  const auto seen = [length](const at::Tensor& of) { return of.slice(2, 0, length); };
  // Padding stands behind all that is seen, so that it sees all of that.
  const at::Tensor mixed = at::scaled_dot_product_attention(
      turned(query), seen(turned(key)), seen(heads("v_proj").transpose(1, 2)), {}, 0.0,
      /*is_causal=*/true, /*scale=*/std::nullopt,
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

std::vector<at::Tensor> QwenTextModel::encode_each(
    const std::vector<Text>& texts, const Progress& progress,
    const std::vector<VisionPatches>& pictures) const {
  const auto table = stored_name("model.embed_tokens.weight");
  const auto blocks = static_cast<int>(spec_.used_layers());
  const int total = blocks + (pictures.empty() ? 0 : static_cast<int>(spec_.vision->depth));
  int done = 0;
  const auto count = [&] {
    if (progress) progress(++done, total);
  };
  std::vector<at::Tensor> all;
  std::vector<Turns> turns;
  weights_.end_block();
  at::Tensor in_text;
  if (!pictures.empty()) {
    const QwenVisionTower tower(spec_.vision.value(), weights_, dtype_, device_);
    in_text = at::cat(tower.encode_each(pictures, count));
  }
  std::vector<std::vector<at::Tensor>> taken(texts.size());
  for (const auto& [ids, length] : texts) {
    if (ids.dim() != 2 || ids.size(0) != 1 || ids.scalar_type() != at::kLong || length < 1 ||
        length > ids.size(1))
      throw std::invalid_argument("[qwen_text_model] ids must be [1, L] int64, some no padding");
    all.push_back(weights_.rows(table, ids.cpu().flatten(), "qwen_text_model")
                      .view({ids.size(0), ids.size(1), spec_.hidden_size}));
    if (pictures.empty()) {
      turns.push_back(turns_at(at::arange(ids.size(1), at::kLong).unsqueeze(0)));
      continue;
    }
    turns.push_back(turns_at(positions_of({ids, length}, pictures)));
    const at::Tensor places =
        ids.cpu().flatten().eq(spec_.vision->image_token_id).nonzero().flatten().to(device_);
    all.back()[0].index_copy_(0, places, in_text);
  }
  const auto take = [&](int layers) {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (std::ranges::count(spec_.taken_layers, layers) > 0) taken[i].push_back(all[i]);
  };
  take(0);
  for (int block = 0; block < blocks; ++block) {
    const std::string prefix = spec::qwen_block_prefix(block);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = feed_forward(attend(all[i], texts[i].length, turns[i], prefix), prefix);
    weights_.end_block();
    take(block + 1);
    count();
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = taken[i].empty() ? norm(all[i], "model.norm") : at::cat(taken[i], -1);
  weights_.end_block();
  return all;
}

}  // namespace troupe::models
