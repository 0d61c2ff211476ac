#include "models/encoders/clip_text_model.h"

#include <stdexcept>

namespace troupe::models {
namespace {

constexpr std::string_view kRoot = "text_model.";
constexpr double kQuickGelu = 1.702;
/// End token that configs named before transformers 4.32.
constexpr std::int64_t kLegacyEos = 2;

}  // namespace

ClipTextModel::ClipTextModel(const spec::ClipSpec& spec, WeightStore weights, at::ScalarType dtype,
                             at::Device device)
    : spec_(spec), weights_(std::move(weights), dtype, device) {
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw std::invalid_argument(std::string("[clip_text_model] dtype ") + c10::toString(dtype) +
                                " is not supported (float32, bfloat16, float16)");
  }
  spec::check_tensors(weights_.index(), expected_tensors(spec_), spec::is_ignorable_clip_tensor);
}

const at::Tensor& ClipTextModel::weight(const std::string& name) const {
  if (!weights_.contains(name) && name.starts_with(kRoot))
    return weights_.get(name.substr(kRoot.size()));
  return weights_.get(name);
}

at::Tensor ClipTextModel::embed(const at::Tensor& ids, const LearnedRows& learned) const {
  const std::string table = "text_model.embeddings.token_embedding.weight";
  const at::Tensor flat = ids.flatten();
  const at::Tensor more =
      learned.rows.defined() ? flat.ge(learned.first_id) : at::zeros_like(flat, at::kBool);
  at::Tensor rows = weights_.rows(weights_.contains(table) ? table : table.substr(kRoot.size()),
                                  flat.masked_fill(more, 0), "clip_text_model");
  if (learned.rows.defined()) {
    const at::Tensor places = more.nonzero().flatten();
    rows.index_copy_(0, places.to(rows.device()),
                     learned.rows.index_select(0, flat.index_select(0, places) - learned.first_id)
                         .to(rows.options()));
  }
  return rows.view({ids.size(0), ids.size(1), spec_.hidden_size}) +
         weight("text_model.embeddings.position_embedding.weight").narrow(0, 0, ids.size(1));
}

at::Tensor ClipTextModel::norm(const at::Tensor& states, const std::string& name) const {
  return at::layer_norm(states, {spec_.hidden_size}, weight(name + ".weight"),
                        weight(name + ".bias"), spec_.layer_norm_eps);
}

at::Tensor ClipTextModel::linear(const at::Tensor& states, const std::string& name) const {
  return at::linear(states, weight(name + ".weight"), weight(name + ".bias"));
}

at::Tensor ClipTextModel::attend(const at::Tensor& states, const std::string& prefix) const {
  const at::Tensor normal = norm(states, prefix + "layer_norm1");
  const auto heads = [&](const char* name) {
    return linear(normal, prefix + "self_attn." + name)
        .view({states.size(0), states.size(1), spec_.num_attention_heads, -1})
        .transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(
      heads("q_proj"), heads("k_proj"), heads("v_proj"), {}, 0.0, /*is_causal=*/true);
  return states +
         linear(mixed.transpose(1, 2).reshape(states.sizes()), prefix + "self_attn.out_proj");
}

at::Tensor ClipTextModel::feed_forward(const at::Tensor& states, const std::string& prefix) const {
  const at::Tensor wide = linear(norm(states, prefix + "layer_norm2"), prefix + "mlp.fc1");
  const at::Tensor active =
      spec_.quick_gelu ? wide * at::sigmoid(kQuickGelu * wide) : at::gelu(wide);
  return states + linear(active, prefix + "mlp.fc2");
}

at::Tensor ClipTextModel::pooled(const at::Tensor& last, const at::Tensor& ids) const {
  const bool legacy = spec_.eos_token_id == kLegacyEos;
  // argmax returns the first of equal values; place 0 without any end token.
  const at::Tensor places =
      legacy ? ids.argmax(-1) : ids.eq(spec_.eos_token_id).to(at::kInt).argmax(-1);
  std::vector<at::Tensor> rows;
  for (std::int64_t row = 0; row < ids.size(0); ++row)
    rows.push_back(last[row][places[row].item<std::int64_t>()]);
  const at::Tensor found = at::stack(rows);
  if (spec_.projection_dim == 0) return found;
  return at::linear(found, weight("text_projection.weight"));
}

ClipStates ClipTextModel::encode(const at::Tensor& ids, int before_end,
                                 const Progress& progress) const {
  return encode_each({ids}, before_end, progress).front();
}

std::vector<ClipStates> ClipTextModel::encode_each(const std::vector<at::Tensor>& texts,
                                                   int before_end, const Progress& progress,
                                                   const LearnedRows& learned) const {
  for (const auto& ids : texts) {
    if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.numel() == 0 ||
        ids.size(1) > spec_.max_position_embeddings) {
      throw std::invalid_argument("[clip_text_model] ids must be [B, L] int64 with 1 to " +
                                  std::to_string(spec_.max_position_embeddings) + " tokens");
    }
  }
  const auto total = static_cast<int>(spec_.num_hidden_layers);
  if (before_end < 1 || before_end > total) {
    throw std::invalid_argument("[clip_text_model] states " + std::to_string(before_end) +
                                " blocks before the end of " + std::to_string(total));
  }
  weights_.end_block();
  std::vector<ClipStates> results(texts.size());
  std::vector<at::Tensor> all;
  for (const auto& ids : texts)
    all.push_back(embed(ids.cpu(), learned));
  for (int block = 0; block < total; ++block) {
    const std::string prefix = spec::clip_block_prefix(block);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (block == total - before_end) results[i].hidden = all[i];
      all[i] = feed_forward(attend(all[i], prefix), prefix);
    }
    weights_.end_block();
    if (progress) progress(block + 1, total);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    results[i].last = norm(all[i], "text_model.final_layer_norm");
    results[i].pooled = pooled(results[i].last, texts[i].cpu());
  }
  weights_.end_block();
  return results;
}

}  // namespace troupe::models
