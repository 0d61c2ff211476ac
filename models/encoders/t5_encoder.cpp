#include "models/encoders/t5_encoder.h"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace troupe::models {

TextBatch text_batch(const Tokenized& tokenized) {
  const auto rows = static_cast<std::int64_t>(tokenized.ids.size());
  const auto length = rows == 0 ? 0 : static_cast<std::int64_t>(tokenized.ids.front().size());
  TextBatch batch{at::empty({rows, length}, at::kLong), at::zeros({rows, length}, at::kLong)};
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto& ids = tokenized.ids[row];
    std::copy(ids.begin(), ids.end(), batch.ids.mutable_data_ptr<std::int64_t>() + row * length);
    batch.mask[row].narrow(0, 0, tokenized.lengths[row]).fill_(1);
  }
  return batch;
}

at::Tensor relative_position_bucket(const at::Tensor& distances, std::int64_t buckets,
                                    std::int64_t max_distance) {
  const std::int64_t half = buckets / 2;
  const std::int64_t exact = half / 2;
  const at::Tensor side = distances.gt(0).to(at::kLong) * half;
  const at::Tensor size = distances.abs();
  // The same float32 operations as the reference, so that distances at a border fall alike.
  const double span = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const at::Tensor far = (size.to(at::kFloat) / exact).log() / span * (half - exact);
  const at::Tensor bucket = (far.to(at::kLong) + exact).clamp_max(half - 1);
  return side + at::where(size.lt(exact), size, bucket);
}

T5Encoder::T5Encoder(const spec::T5Spec& spec, WeightStore weights, at::ScalarType dtype,
                     at::Device device)
    : spec_(spec), weights_(std::move(weights), dtype, device), dtype_(dtype), device_(device) {
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw std::invalid_argument(std::string("[t5_encoder] dtype ") + c10::toString(dtype) +
                                " is not supported (float32, bfloat16, float16)");
  }
  const auto expected = spec::expected_tensors(spec_);
  spec::check_tensors(weights_.index(), expected, spec::is_ignorable_t5_tensor);
  embedding_ = spec::entry_of(weights_.index(), expected.front()).name;
}

at::Tensor T5Encoder::embed(const at::Tensor& ids) const {
  return weights_.rows(embedding_, ids.flatten(), "t5_encoder")
      .view({ids.size(0), ids.size(1), spec_.d_model});
}

at::Tensor T5Encoder::position_bias(int block, std::int64_t length,
                                    const at::Tensor& hidden) const {
  const at::Tensor positions = at::arange(length, at::kLong);
  const at::Tensor buckets = relative_position_bucket(
      positions.unsqueeze(0) - positions.unsqueeze(1), spec_.relative_attention_num_buckets,
      spec_.relative_attention_max_distance);
  const at::Tensor table =
      weight(spec::t5_block_prefix(block) + "layer.0.SelfAttention.relative_attention_bias.weight");
  const at::Tensor bias =
      at::embedding(table, buckets.to(device_)).permute({2, 0, 1}).unsqueeze(0).to(at::kFloat);
  return hidden.defined() ? bias.masked_fill(hidden, std::numeric_limits<float>::lowest()) : bias;
}

at::Tensor T5Encoder::norm(const at::Tensor& states, const at::Tensor& scale) const {
  const at::Tensor wide = states.to(at::kFloat);
  const at::Tensor inverse =
      (wide.pow(2).mean(-1, /*keepdim=*/true) + spec_.layer_norm_epsilon).rsqrt();
  return scale * (wide * inverse).to(dtype_);
}

at::Tensor T5Encoder::attend(const at::Tensor& states, const std::string& prefix,
                             const at::Tensor& bias) const {
  const std::int64_t batch = states.size(0);
  const std::int64_t length = states.size(1);
  const at::Tensor normal = norm(states, weight(prefix + "layer_norm.weight"));
  const auto heads = [&](const char* name) {
    return at::linear(normal, weight(prefix + "SelfAttention." + name + ".weight"))
        .view({batch, length, spec_.num_heads, spec_.d_kv})
        .transpose(1, 2);
  };
  const at::Tensor query = heads("q");
  const at::Tensor key = heads("k");
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)).to(at::kFloat);
  scores.add_(bias);
  const at::Tensor mixed = at::matmul(at::softmax(scores, -1).to(dtype_), heads("v"));
  const at::Tensor joined = mixed.transpose(1, 2).reshape({batch, length, -1});
  return states + at::linear(joined, weight(prefix + "SelfAttention.o.weight"));
}

at::Tensor T5Encoder::feed_forward(const at::Tensor& states, const std::string& prefix) const {
  const std::string dense = prefix + "DenseReluDense.";
  const at::Tensor normal = norm(states, weight(prefix + "layer_norm.weight"));
  at::Tensor hidden;
  if (spec_.gated_gelu) {
    hidden = at::gelu(at::linear(normal, weight(dense + "wi_0.weight")), "tanh");
    hidden.mul_(at::linear(normal, weight(dense + "wi_1.weight")));
  } else {
    hidden = at::linear(normal, weight(dense + "wi.weight")).relu_();
  }
  return states + at::linear(hidden, weight(dense + "wo.weight"));
}

at::Tensor T5Encoder::encode(const at::Tensor& ids, const at::Tensor& mask,
                             const Progress& progress) const {
  return encode_each({{ids, mask}}, progress).front();
}

std::vector<at::Tensor> T5Encoder::encode_each(const std::vector<TextBatch>& texts,
                                               const Progress& progress) const {
  struct Text {
    at::Tensor hidden, bias, states;
  };
  std::vector<Text> all;
  weights_.end_block();
  for (const auto& [ids, mask] : texts) {
    if (ids.dim() != 2 || ids.scalar_type() != at::kLong ||
        (mask.defined() && mask.sizes() != ids.sizes())) {
      throw std::invalid_argument("[t5_encoder] ids must be [B, L] int64, and the mask likewise");
    }
    auto& text = all.emplace_back();
    if (mask.defined()) text.hidden = mask.to(device_).eq(0).view({ids.size(0), 1, 1, ids.size(1)});
    text.states = embed(ids.cpu());
  }
  const auto total = static_cast<int>(spec_.num_layers);
  for (int block = 0; block < total; ++block) {
    const std::string prefix = spec::t5_block_prefix(block);
    for (auto& text : all) {
      if (block == 0 || spec_.bias_in_every_block)
        text.bias = position_bias(block, text.states.size(1), text.hidden);
      text.states = attend(text.states, prefix + "layer.0.", text.bias);
    }
    for (auto& text : all)
      text.states = feed_forward(text.states, prefix + "layer.1.");
    weights_.end_block();
    if (progress) progress(block + 1, total);
  }
  std::vector<at::Tensor> states;
  for (const auto& text : all)
    states.push_back(norm(text.states, weight("encoder.final_layer_norm.weight")));
  weights_.end_block();
  return states;
}

}  // namespace troupe::models
