#include "models/encoders/clip_text_model.h"

#include <stdexcept>

namespace troupe::models {
namespace {

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

ClipLayers ClipTextModel::layers() const {
  return {weights_,
          "text_model.",
          {.width = spec_.hidden_size,
           .heads = spec_.num_attention_heads,
           .eps = spec_.layer_norm_eps,
           .quick_gelu = spec_.quick_gelu,
           .causal = true}};
}

at::Tensor ClipTextModel::embed(const at::Tensor& ids, const LearnedRows& learned) const {
  const std::string table = layers().name_of("embeddings.token_embedding.weight");
  const at::Tensor flat = ids.flatten();
  const at::Tensor more =
      learned.rows.defined() ? flat.ge(learned.first_id) : at::zeros_like(flat, at::kBool);
  at::Tensor rows = weights_.rows(table, flat.masked_fill(more, 0), "clip_text_model");
  if (learned.rows.defined()) {
    const at::Tensor places = more.nonzero().flatten();
    rows.index_copy_(0, places.to(rows.device()),
                     learned.rows.index_select(0, flat.index_select(0, places) - learned.first_id)
                         .to(rows.options()));
  }
  return rows.view({ids.size(0), ids.size(1), spec_.hidden_size}) +
         layers().weight("embeddings.position_embedding.weight").narrow(0, 0, ids.size(1));
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
  return at::linear(found, weights_.get("text_projection.weight"));
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
    const std::string prefix = spec::clip_layer_prefix(block);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (block == total - before_end) results[i].hidden = all[i];
      all[i] = layers().block(all[i], prefix);
    }
    weights_.end_block();
    if (progress) progress(block + 1, total);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    results[i].last = layers().norm(all[i], "final_layer_norm");
    results[i].pooled = pooled(results[i].last, texts[i].cpu());
  }
  weights_.end_block();
  return results;
}

}  // namespace troupe::models
