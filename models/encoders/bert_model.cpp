#include "models/encoders/bert_model.h"

#include <stdexcept>

namespace troupe::models {

BertModel::BertModel(const spec::BertSpec& spec, WeightStore weights, at::ScalarType dtype,
                     at::Device device)
    : spec_(spec), weights_(std::move(weights), dtype, device), device_(device) {
  spec::check_tensors(weights_.index(), expected_tensors(spec_), spec::is_ignorable_bert_tensor);
}

std::string BertModel::stored(const std::string& name) const {
  return weights_.contains(name) ? name : "bert." + name;
}

at::Tensor BertModel::embed(const at::Tensor& ids) const {
  if (ids.size(1) > spec_.max_position_embeddings) {
    throw std::invalid_argument("[bert_model] " + std::to_string(ids.size(1)) +
                                " tokens, positions for " +
                                std::to_string(spec_.max_position_embeddings));
  }
  const at::Tensor rows =
      weights_.rows(stored("embeddings.word_embeddings.weight"), ids.flatten(), "bert_model")
          .view({ids.size(0), ids.size(1), spec_.hidden_size});
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
  weights_.end_block();
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
    weights_.end_block();
    if (progress) progress(block + 1, blocks);
  }
  return all;
}

}  // namespace troupe::models
