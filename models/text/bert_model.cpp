#include "models/text/bert_model.h"

#include <stdexcept>

namespace troupe::models {

BertModel::BertModel(const spec::BertSpec& spec, WeightStore weights, at::ScalarType dtype,
                     at::Device device)
    : spec_(spec), weights_(std::move(weights)), dtype_(dtype), device_(device) {
  spec::check_tensors(weights_.index(), expected_tensors(spec_), spec::is_ignorable_bert_tensor);
}

std::string BertModel::stored(const std::string& name) const {
  return weights_.contains(name) ? name : "bert." + name;
}

at::Tensor BertModel::weight(const std::string& name) const {
  const std::string found = stored(name);
  auto& held = held_[found];
  if (!held.defined())
    held = weights_.get(found, weights_.index().at(found).shape, dtype_, device_);
  return held;
}

at::Tensor BertModel::embed(const at::Tensor& ids) const {
  const auto least = ids.min().item<std::int64_t>(), most = ids.max().item<std::int64_t>();
  if (least < 0 || most >= spec_.vocab_size) {
    throw std::invalid_argument("[bert_model] token id " +
                                std::to_string(least < 0 ? least : most) +
                                " is not below vocab_size = " + std::to_string(spec_.vocab_size));
  }
  if (ids.size(1) > spec_.max_position_embeddings) {
    throw std::invalid_argument("[bert_model] " + std::to_string(ids.size(1)) +
                                " tokens, positions for " +
                                std::to_string(spec_.max_position_embeddings));
  }
  const std::string name = stored("embeddings.word_embeddings.weight");
  at::Tensor rows = weights_.get(name).index_select(0, ids.flatten());
  require_finite(rows, weights_.index().label().string() + ": rows of tensor \"" + name + "\" ");
  weights_.release(name);
  rows = rows.view({ids.size(0), ids.size(1), spec_.hidden_size}).to(dtype_).to(device_);
  const at::Tensor kind = weight("embeddings.token_type_embeddings.weight").select(0, 0);
  const at::Tensor place =
      weight("embeddings.position_embeddings.weight").narrow(0, 0, ids.size(1));
  return norm(rows + kind + place, "embeddings.LayerNorm");
}

at::Tensor BertModel::linear(const at::Tensor& states, const std::string& name) const {
  return at::linear(states, weight(name + ".weight"), weight(name + ".bias"));
}

at::Tensor BertModel::norm(const at::Tensor& states, const std::string& name) const {
  return at::layer_norm(states, {spec_.hidden_size}, weight(name + ".weight"),
                        weight(name + ".bias"), spec_.layer_norm_eps);
}

at::Tensor BertModel::attend(const at::Tensor& states, const std::string& prefix,
                             const at::Tensor& seen) const {
  const std::int64_t batch = states.size(0), length = states.size(1);
  const auto heads = [&](const char* name) {
    return linear(states, prefix + "attention.self." + name)
        .view({batch, length, spec_.num_attention_heads, -1})
        .transpose(1, 2);
  };
  const at::Tensor out =
      at::scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), seen)
          .transpose(1, 2)
          .reshape({batch, length, spec_.hidden_size});
  return linear(out, prefix + "attention.output.dense");
}

at::Tensor BertModel::encode(const at::Tensor& ids, const at::Tensor& mask,
                             const Progress& progress) const {
  return encode_each({{ids, mask}}, progress).front();
}

std::vector<at::Tensor> BertModel::encode_each(const std::vector<TextBatch>& texts,
                                               const Progress& progress) const {
  held_.clear();
  std::vector<at::Tensor> seen, all;
  for (const auto& [ids, mask] : texts) {
    seen.push_back(mask.ne(0).view({ids.size(0), 1, 1, ids.size(1)}).to(device_));
    all.push_back(embed(ids));
  }
  const int blocks = static_cast<int>(spec_.num_hidden_layers);
  for (int block = 0; block < blocks; ++block) {
    const std::string prefix = spec::bert_block_prefix(block);
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto& states = all[i];
      states =
          norm(states + attend(states, prefix, seen[i]), prefix + "attention.output.LayerNorm");
      const at::Tensor wide = at::gelu(linear(states, prefix + "intermediate.dense"));
      states = norm(states + linear(wide, prefix + "output.dense"), prefix + "output.LayerNorm");
    }
    held_.clear();
    for (const auto& entry : weights_.index().tensors()) {
      if (entry.name.find(prefix) != std::string::npos) weights_.release(entry.name);
    }
    if (progress) progress(block + 1, blocks);
  }
  return all;
}

}  // namespace troupe::models
