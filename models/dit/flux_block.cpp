#include "models/dit/flux_block.h"

#include <ATen/ATen.h>

#include "kernels/elementwise.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

FluxSingleBlock::FluxSingleBlock(const spec::FluxSpec& spec, int index, WeightShard shard,
                                 const WeightLoader& weights)
    : slot_(index),
      sharded_(shard.degree > 1),
      width_(spec.inner_dim()),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim) {
  const std::string prefix =
      "single_transformer_blocks." + std::to_string(index - spec.num_layers) + ".";
  const int64_t heads = spec.num_attention_heads, wide = 4 * width_;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const std::string attention = prefix + "attn.";
  norm_ = weights.linear(prefix + "norm.linear", width_, 3 * width_);
  qkv_ = weights.joined({attention + "to_q", attention + "to_k", attention + "to_v"}, width_,
                        width_, true, own);
  widen_ = weights.joined({prefix + "proj_mlp"}, width_, wide, true, columns);
  // One product of both in the checkpoint: attention's columns first, then the feed-forward's.
  out_ = weights.narrow(prefix + "proj_out", width_ + wide, width_, own, shard.rank == 0);
  narrow_ = weights.narrow(prefix + "proj_out", width_ + wide, width_,
                           {width_ + columns.begin, width_ + columns.end}, false, false);
  norm_q_ = weights.copy(attention + "norm_q.weight", {head_dim_});
  norm_k_ = weights.copy(attention + "norm_k.weight", {head_dim_});
}

at::Tensor FluxSingleBlock::modulation(const at::Tensor& embedded) const {
  return norm_(embedded).view({embedded.size(0), 3, width_});
}

void FluxSingleBlock::run(at::Tensor& hidden, const at::Tensor& modulation,
                          const RotaryAngles& turns, AttentionPort& attention,
                          TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const at::Tensor normal = modulated(hidden, modulation);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  kernels::norm_rotate(q, norm_q_, turns.cosine, turns.sine, kEps);
  kernels::norm_rotate(k, norm_k_, turns.cosine, turns.sine, kEps);
  const at::Tensor attended =
      attention.attend(slot_, qkv).view({batch, tokens, heads_ * head_dim_});
  if (out_.quantized()) {
    const auto gate = modulation.select(1, kGate);
    const at::Tensor wide = widen_.gelu(normal);
    add_product(hidden, out_, attended, gate, sharded_, sums);
    add_product(hidden, narrow_, wide, gate, sharded_, sums);
    return;
  }
  at::Tensor out = out_(attended);
  narrow_.add_to(out, widen_.gelu(normal));
  sums.sum(out);
  kernels::add_gated(hidden, out, modulation.select(1, kGate));
}

at::Tensor FluxSingleBlock::modulated(const at::Tensor& hidden,
                                      const at::Tensor& modulation) const {
  return kernels::norm_modulate(hidden, modulation.select(1, kScale), modulation.select(1, kShift),
                                kEps);
}

int64_t FluxSingleBlock::bytes() const {
  return norm_.bytes() + qkv_.bytes() + widen_.bytes() + out_.bytes() + narrow_.bytes() +
         static_cast<int64_t>(norm_q_.nbytes() + norm_k_.nbytes());
}

void FluxSingleBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear : {&norm_, &qkv_, &widen_, &out_, &narrow_})
    linear->list_tensors(all);
  all.insert(all.end(), {&norm_q_, &norm_k_});
}

}  // namespace troupe::models
