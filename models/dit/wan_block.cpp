#include "models/dit/wan_block.h"

#include <cmath>
#include <optional>

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

NormAcrossHeads::NormAcrossHeads(const WeightLoader& weights, const std::string& name,
                                 int64_t width, Slice own, double eps)
    : weight_(weights.get(name + ".weight", {width}).slice(0, own.begin, own.end).clone()),
      width_(width),
      eps_(eps) {}

void NormAcrossHeads::whole(at::Tensor x) const {
  const int64_t batch = x.size(0), tokens = x.size(1);
  at::Tensor rows = x.view({batch, tokens, 1, width_});
  if (x.is_cpu()) return kernels::norm_rotate(rows, weight_, {}, {}, eps_);
  rows.copy_(at::rms_norm(rows.to(at::kFloat), {width_}, weight_.to(at::kFloat), eps_));
}

void NormAcrossHeads::part(at::Tensor x, const at::Tensor& squares) const {
  const at::Tensor factor = squares.div(static_cast<double>(width_)).add(eps_).rsqrt();
  x.copy_(x.to(at::kFloat) * factor.unsqueeze(2).unsqueeze(3) *
          weight_.view({x.size(2), x.size(3)}).to(at::kFloat));
}

at::Tensor NormAcrossHeads::squares(const at::Tensor& x) {
  return x.to(at::kFloat).square().sum({2, 3});
}

int64_t NormAcrossHeads::bytes() const {
  return weight_.defined() ? static_cast<int64_t>(weight_.nbytes()) : 0;
}

WanText WanText::items(int64_t begin, int64_t end) const {
  return {kv.slice(0, begin, end), squares.defined() ? squares.slice(0, begin, end) : squares};
}

int64_t WanText::bytes() const {
  return static_cast<int64_t>(kv.nbytes() + (squares.defined() ? squares.nbytes() : 0));
}

WanBlock::WanBlock(const spec::WanSpec& spec, int index, WeightShard shard,
                   const WeightLoader& weights)
    : index_(index),
      sharded_(shard.degree > 1),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim),
      eps_(spec.eps) {
  const std::string prefix = "blocks." + std::to_string(index) + ".";
  const std::string self = prefix + "attn1.", cross = prefix + "attn2.";
  const int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(spec.ffn_dim), shard.end(spec.ffn_dim)};
  const bool first = shard.rank == 0;  // the sum over shards has each bias once
  const auto norm = [&](const std::string& name) {
    return NormAcrossHeads(weights, name, width, own, eps_);
  };
  table_ = weights.copy(prefix + "scale_shift_table", {1, 6, width}).view({6, width});
  qkv_ = weights.joined({self + "to_q", self + "to_k", self + "to_v"}, width, width, true, own);
  self_q_ = norm(self + "norm_q");
  self_k_ = norm(self + "norm_k");
  self_out_ = weights.narrow(self + "to_out.0", width, width, own, first);
  if (spec.cross_attn_norm) {
    cross_scale_ = (weights.get(prefix + "norm2.weight", {width}) - 1).unsqueeze(0);
    cross_bias_ = weights.copy(prefix + "norm2.bias", {width}).unsqueeze(0);
  }
  cross_q_ = weights.joined({cross + "to_q"}, width, width, true, own);
  cross_kv_ = weights.joined({cross + "to_k", cross + "to_v"}, width, width, true, own);
  text_q_ = norm(cross + "norm_q");
  text_k_ = norm(cross + "norm_k");
  cross_out_ = weights.narrow(cross + "to_out.0", width, width, own, first);
  widen_ = weights.joined({prefix + "ffn.net.0.proj"}, width, spec.ffn_dim, true, columns);
  narrow_ = weights.narrow(prefix + "ffn.net.2", spec.ffn_dim, width, columns, first);
}

WanText WanBlock::text(const at::Tensor& states) const {
  WanText made;
  made.kv = cross_kv_(states).view({states.size(0), states.size(1), 2, heads_, head_dim_});
  const at::Tensor keys = made.kv.select(2, 0);
  if (sharded_) {
    made.squares = NormAcrossHeads::squares(keys);
  } else {
    text_k_.whole(keys);
  }
  return made;
}

at::Tensor WanBlock::self(const at::Tensor& normal, const RotaryAngles& turns,
                          AttentionPort& attention, TensorParallelPort& sums) const {
  const int64_t batch = normal.size(0), tokens = normal.size(1);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  if (sharded_) {
    at::Tensor squares =
        at::stack({NormAcrossHeads::squares(q), NormAcrossHeads::squares(k)}, 2).contiguous();
    sums.sum(squares);
    self_q_.part(q, squares.select(2, 0));
    self_k_.part(k, squares.select(2, 1));
  } else if (tokens > 0) {
    self_q_.whole(q);
    self_k_.whole(k);
  }
  kernels::norm_rotate(q, {}, turns.cosine, turns.sine, eps_);
  kernels::norm_rotate(k, {}, turns.cosine, turns.sine, eps_);
  return attention.attend(index_, qkv).view({batch, tokens, heads_ * head_dim_});
}

at::Tensor WanBlock::cross(const at::Tensor& hidden, const WanText& text,
                           TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const auto across = [batch = batch, width = hidden.size(2)](const at::Tensor& row) {
    return row.expand({batch, width});
  };
  const at::Tensor normal =
      cross_scale_.defined()
          ? kernels::norm_modulate(hidden, across(cross_scale_), across(cross_bias_), eps_)
          : hidden;
  at::Tensor q = cross_q_(normal).view({batch, tokens, heads_, head_dim_});
  at::Tensor keys = text.kv.select(2, 0);
  if (sharded_) {
    at::Tensor squares = at::cat({NormAcrossHeads::squares(q), text.squares}, 1).contiguous();
    sums.sum(squares);
    text_q_.part(q, squares.slice(1, 0, tokens));
    keys = keys.clone();
    text_k_.part(keys, squares.slice(1, tokens));
  } else {
    text_q_.whole(q);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  return kernels::attention(q, keys, text.kv.select(2, 1), scale)
      .view({batch, tokens, heads_ * head_dim_});
}

void WanBlock::run(at::Tensor& hidden, const at::Tensor& modulation, const WanText& text,
                   const RotaryAngles& turns, AttentionPort& attention,
                   TensorParallelPort& sums) const {
  const at::Tensor factors = table_.unsqueeze(0) + modulation;
  const auto factor = [&factors](int64_t index) { return factors.select(1, index); };
  enum { kShiftSelf, kScaleSelf, kGateSelf, kShiftForward, kScaleForward, kGateForward };

  at::Tensor normal = kernels::norm_modulate(hidden, factor(kScaleSelf), factor(kShiftSelf), eps_);
  add_product(hidden, self_out_, self(normal, turns, attention, sums), factor(kGateSelf), sharded_,
              sums);
  if (hidden.size(1) == 0) return;  // the same on every shard
  add_product(hidden, cross_out_, cross(hidden, text, sums), std::nullopt, sharded_, sums);
  normal = kernels::norm_modulate(hidden, factor(kScaleForward), factor(kShiftForward), eps_);
  add_product(hidden, narrow_, widen_.gelu(normal), factor(kGateForward), sharded_, sums);
}

int64_t WanBlock::bytes() const {
  int64_t total = static_cast<int64_t>(table_.nbytes());
  if (cross_scale_.defined())
    total += static_cast<int64_t>(cross_scale_.nbytes() + cross_bias_.nbytes());
  for (const kernels::Linear* linear :
       {&qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_})
    total += linear->bytes();
  for (const NormAcrossHeads* norm : {&self_q_, &self_k_, &text_q_, &text_k_})
    total += norm->bytes();
  return total;
}

void NormAcrossHeads::list_tensors(std::vector<at::Tensor*>& all) {
  all.push_back(&weight_);
}

void WanBlock::list_tensors(std::vector<at::Tensor*>& all) {
  all.insert(all.end(), {&table_, &cross_scale_, &cross_bias_});
  for (kernels::Linear* linear :
       {&qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_})
    linear->list_tensors(all);
  for (NormAcrossHeads* norm : {&self_q_, &self_k_, &text_q_, &text_k_})
    norm->list_tensors(all);
}

}  // namespace troupe::models
