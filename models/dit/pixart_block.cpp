#include "models/dit/pixart_block.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

namespace {

/// Value that diffusers adds to the scores of a token that is masked out.
constexpr double kMaskedBias = -10000.0;

}  // namespace

CaptionTokens::CaptionTokens(const at::Tensor& projected, const at::Tensor& mask) {
  const at::Tensor keep = mask.to(at::kCPU, at::kBool);
  const int64_t batch = projected.size(0);
  for (int64_t first = 0; first < batch;) {
    const at::Tensor row = keep[first];
    int64_t end = first + 1;
    while (end < batch && at::equal(row, keep[end]))
      ++end;
    Group group{first, end - first, projected.slice(0, first, end), std::nullopt};
    const at::Tensor kept = at::nonzero(row).view({-1});
    if (kept.numel() == 0) {
      group.bias = at::full({end - first, projected.size(1)}, kMaskedBias, projected.options());
    } else if (kept.numel() < row.numel()) {
      group.states = group.states.index_select(1, kept.to(projected.device()));
    }
    groups_.push_back(std::move(group));
    first = end;
  }
}

CaptionKv CaptionKv::items(int64_t begin, int64_t end) const {
  CaptionKv some;
  int64_t first = 0;
  for (const Group& group : groups) {
    const int64_t count = group.kv.size(0);
    const int64_t from = std::max(begin, first) - first, to = std::min(end, first + count) - first;
    if (from < to) {
      std::optional<at::Tensor> bias;
      if (group.bias) bias = group.bias->slice(0, from, to);
      some.groups.push_back({group.kv.slice(0, from, to), bias});
    }
    first += count;
  }
  return some;
}

int64_t CaptionKv::bytes() const {
  int64_t total = 0;
  for (const Group& group : groups)
    total += static_cast<int64_t>(group.kv.nbytes());
  return total;
}

PixArtBlock::PixArtBlock(const spec::PixArtSpec& spec, int index, WeightShard shard,
                         const WeightLoader& weights)
    : index_(index),
      sharded_(shard.degree > 1),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim),
      eps_(spec.norm_eps) {
  const int64_t width = spec.inner_dim(), wide = 4 * width;
  const bool bias = spec.attention_bias;
  const std::string prefix = spec::pixart_block_prefix(index);
  const std::string self = prefix + "attn1.", cross = prefix + "attn2.";
  const int64_t heads = spec.num_attention_heads;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const bool first = shard.rank == 0;  // the sum over shards has each bias once
  table_ = weights.copy(prefix + "scale_shift_table", {6, width});
  qkv_ = weights.joined({self + "to_q", self + "to_k", self + "to_v"}, width, width, bias, own);
  self_out_ = weights.narrow(self + "to_out.0", width, width, own, first);
  cross_q_ = weights.joined({cross + "to_q"}, width, width, bias, own);
  cross_kv_ = weights.joined({cross + "to_k", cross + "to_v"}, width, width, bias, own);
  cross_out_ = weights.narrow(cross + "to_out.0", width, width, own, first);
  widen_ = weights.joined({prefix + "ff.net.0.proj"}, width, wide, true, columns);
  narrow_ = weights.narrow(prefix + "ff.net.2", wide, width, columns, first);
}

CaptionKv PixArtBlock::caption(const CaptionTokens& tokens) const {
  CaptionKv made;
  for (const CaptionTokens::Group& group : tokens.groups()) {
    const at::Tensor kv = cross_kv_(group.states);
    made.groups.push_back(
        {kv.view({group.count, group.states.size(1), 2, heads_, head_dim_}), group.bias});
  }
  return made;
}

at::Tensor PixArtBlock::cross(const at::Tensor& hidden, const CaptionKv& caption) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  const at::Tensor q = cross_q_(hidden).view({batch, tokens, heads_, head_dim_});
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const CaptionKv::Group& group : caption.groups) {
    const int64_t count = group.kv.size(0);
    parts.push_back(kernels::attention(q.slice(0, first, first + count), group.kv.select(2, 0),
                                       group.kv.select(2, 1), scale, group.bias));
    first += count;
  }
  const at::Tensor all = parts.size() == 1 ? parts.front() : at::cat(parts);
  return all.view({batch, tokens, heads_ * head_dim_});
}

at::Tensor PixArtBlock::self(const at::Tensor& normal, AttentionPort& attention) const {
  const int64_t batch = normal.size(0), tokens = normal.size(1);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  return attention.attend(index_, qkv).view({batch, tokens, heads_ * head_dim_});
}

void PixArtBlock::run(at::Tensor& hidden, const at::Tensor& modulation, const CaptionKv& caption,
                      AttentionPort& attention, TensorParallelPort& sums) const {
  const at::Tensor factors = table_.unsqueeze(0) + modulation;
  const auto factor = [&factors](int64_t index) { return factors.select(1, index); };

  at::Tensor normal = kernels::norm_modulate(hidden, factor(kScale), factor(kShift), eps_);
  add_product(hidden, self_out_, self(normal, attention), factor(kGate), sharded_, sums);
  add_product(hidden, cross_out_, cross(hidden, caption), std::nullopt, sharded_, sums);
  normal = kernels::norm_modulate(hidden, factor(kScaleForward), factor(kShiftForward), eps_);
  add_product(hidden, narrow_, widen_.gelu(normal), factor(kGateForward), sharded_, sums);
}

at::Tensor PixArtBlock::modulated(const at::Tensor& hidden, const at::Tensor& modulation) const {
  const at::Tensor factors = table_.unsqueeze(0) + modulation;
  return kernels::norm_modulate(hidden, factors.select(1, kScale), factors.select(1, kShift), eps_);
}

int64_t PixArtBlock::bytes() const {
  int64_t total = static_cast<int64_t>(table_.nbytes());
  for (const kernels::Linear* linear :
       {&qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_}) {
    total += linear->bytes();
  }
  return total;
}

void PixArtBlock::list_tensors(std::vector<at::Tensor*>& all) {
  all.push_back(&table_);
  for (kernels::Linear* linear :
       {&qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_})
    linear->list_tensors(all);
}

}  // namespace troupe::models
