#include "models/dit/hunyuan_block.h"

#include <cmath>
#include <optional>

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

namespace {}  // namespace

AffineNorm::AffineNorm(const WeightLoader& weights, const std::string& name, int64_t width)
    : weight_(weights.copy(name + ".weight", {width})),
      bias_(weights.copy(name + ".bias", {width})),
      scale_(weight_ - 1) {}

at::Tensor AffineNorm::operator()(const at::Tensor& x, const at::Tensor& shift) const {
  const int64_t batch = x.size(0), width = x.size(2);
  const at::Tensor by = shift.defined() ? shift + bias_ : bias_.unsqueeze(0).expand({batch, width});
  return kernels::norm_modulate(x, scale_.unsqueeze(0).expand({batch, width}), by, kEps);
}

at::Tensor AffineNorm::by_head(const at::Tensor& x) const {
  return at::layer_norm(x, {weight_.size(0)}, weight_, bias_, kEps);
}

int64_t AffineNorm::bytes() const {
  return weight_.defined() ? static_cast<int64_t>(weight_.nbytes() + bias_.nbytes()) : 0;
}

HunyuanBlock::HunyuanBlock(const spec::HunyuanSpec& spec, int index, WeightShard shard,
                           const WeightLoader& weights)
    : index_(index),
      sharded_(shard.degree > 1),
      takes_skip_(spec.takes_skip(index)),
      leaves_skip_(spec.leaves_skip(index)),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim) {
  const std::string prefix = "blocks." + std::to_string(index) + ".";
  const std::string self = prefix + "attn1.", cross = prefix + "attn2.";
  const int64_t width = spec.inner_dim(), wide = spec.ff_inner_dim();
  const int64_t text = spec.cross_attention_dim, heads = spec.num_attention_heads;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const bool first = shard.rank == 0;
  shift_ = weights.linear(prefix + "norm1.linear", width, width);
  norm_self_ = AffineNorm(weights, prefix + "norm1.norm", width);
  qkv_ = weights.joined({self + "to_q", self + "to_k", self + "to_v"}, width, width, true, own);
  self_out_ = weights.narrow(self + "to_out.0", width, width, own, first);
  self_q_ = AffineNorm(weights, self + "norm_q", head_dim_);
  self_k_ = AffineNorm(weights, self + "norm_k", head_dim_);
  norm_cross_ = AffineNorm(weights, prefix + "norm2", width);
  cross_q_ = weights.joined({cross + "to_q"}, width, width, true, own);
  cross_kv_ = weights.joined({cross + "to_k", cross + "to_v"}, text, width, true, own);
  cross_out_ = weights.narrow(cross + "to_out.0", width, width, own, first);
  text_q_ = AffineNorm(weights, cross + "norm_q", head_dim_);
  text_k_ = AffineNorm(weights, cross + "norm_k", head_dim_);
  norm_forward_ = AffineNorm(weights, prefix + "norm3", width);
  widen_ = weights.joined({prefix + "ff.net.0.proj"}, width, wide, true, columns);
  narrow_ = weights.narrow(prefix + "ff.net.2", wide, width, columns, first);
  if (!takes_skip_) return;
  norm_skip_ = AffineNorm(weights, prefix + "skip_norm", 2 * width);
  skip_ = weights.linear(prefix + "skip_linear", 2 * width, width);
}

at::Tensor HunyuanBlock::caption(const at::Tensor& states) const {
  const at::Tensor kv =
      cross_kv_(states).view({states.size(0), states.size(1), 2, heads_, head_dim_});
  return at::stack({text_k_.by_head(kv.select(2, 0)), kv.select(2, 1)}, 2);
}

void HunyuanBlock::run(at::Tensor& hidden, const at::Tensor& skip, const at::Tensor& shift,
                       const at::Tensor& caption, const RotaryAngles& turns,
                       AttentionPort& attention, TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const auto joined = [&](const at::Tensor& heads) {
    return heads.reshape({batch, tokens, heads_ * head_dim_});
  };
  if (takes_skip_) hidden = skip_(norm_skip_(at::cat({hidden, skip}, 2)));

  const at::Tensor qkv = qkv_(modulated(hidden, shift)).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = self_q_.by_head(qkv.select(2, 0)), k = self_k_.by_head(qkv.select(2, 1));
  kernels::norm_rotate(q, {}, turns.cosine, turns.sine, kEps);
  kernels::norm_rotate(k, {}, turns.cosine, turns.sine, kEps);
  const at::Tensor seen = attention.attend(index_, at::stack({q, k, qkv.select(2, 2)}, 2));
  add_product(hidden, self_out_, joined(seen), std::nullopt, sharded_, sums);

  at::Tensor ask =
      text_q_.by_head(cross_q_(norm_cross_(hidden)).view({batch, tokens, heads_, head_dim_}));
  kernels::norm_rotate(ask, {}, turns.cosine, turns.sine, kEps);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  const at::Tensor told =
      kernels::attention(ask, caption.select(2, 0), caption.select(2, 1), scale);
  add_product(hidden, cross_out_, joined(told), std::nullopt, sharded_, sums);

  add_product(hidden, narrow_, widen_.gelu(norm_forward_(hidden)), std::nullopt, sharded_, sums);
}

int64_t HunyuanBlock::bytes() const {
  int64_t total = 0;
  for (const kernels::Linear* linear :
       {&shift_, &qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_, &skip_})
    total += linear->bytes();
  for (const AffineNorm* norm : {&norm_self_, &norm_cross_, &norm_forward_, &norm_skip_, &self_q_,
                                 &self_k_, &text_q_, &text_k_})
    total += norm->bytes();
  return total;
}

void AffineNorm::list_tensors(std::vector<at::Tensor*>& all) {
  all.insert(all.end(), {&weight_, &bias_, &scale_});
}

void HunyuanBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear :
       {&shift_, &qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_, &skip_})
    linear->list_tensors(all);
  for (AffineNorm* norm : {&norm_self_, &norm_cross_, &norm_forward_, &norm_skip_, &self_q_,
                           &self_k_, &text_q_, &text_k_})
    norm->list_tensors(all);
}

}  // namespace troupe::models
