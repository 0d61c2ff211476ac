#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/weight_loader.h"
#include "models/spec/pixart_spec.h"

namespace troupe::models {

/// Caption tokens that the cross attention sees. Tokens that are masked out are dropped; batch
/// items of equal masks stay together.
class CaptionTokens {
 public:
  struct Group {
    int64_t first = 0;  ///< batch items [first, first + count)
    int64_t count = 0;
    at::Tensor states;               ///< [count, kept, D]
    std::optional<at::Tensor> bias;  ///< [count, kept], only where an item has no token at all
  };

  /// projected [B, L, D], mask [B, L] bool.
  CaptionTokens(const at::Tensor& projected, const at::Tensor& mask);
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<Group> groups_;
};

/// Keys and values of one block's cross attention.
struct CaptionKv {
  struct Group {
    at::Tensor kv;  ///< [count, kept, 2, H, d]
    std::optional<at::Tensor> bias;
  };
  std::vector<Group> groups;
  /// Returns the keys and values of batch items [begin, end), which share this object's memory.
  CaptionKv items(int64_t begin, int64_t end) const;
  int64_t bytes() const;
};

/// Self attention, cross attention and feed-forward with adaLN-single modulation.
/// Source: BasicTransformerBlock of diffusers with norm_type ada_norm_single.
class PixArtBlock {
 public:
  PixArtBlock(const spec::PixArtSpec& spec, int index, WeightShard shard,
              const WeightLoader& weights);

  CaptionKv caption(const CaptionTokens& tokens) const;
  /// hidden [B, tokens, D], contiguous, changed in place; modulation [B, 6, D].
  void run(at::Tensor& hidden, const at::Tensor& modulation, const CaptionKv& caption,
           AttentionPort& attention, TensorParallelPort& sums) const;
  /// Returns the input of the self attention: `hidden` normed, scaled and shifted.
  at::Tensor modulated(const at::Tensor& hidden, const at::Tensor& modulation) const;
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor self(const at::Tensor& normal, AttentionPort& attention) const;
  at::Tensor cross(const at::Tensor& hidden, const CaptionKv& caption) const;

  int index_;
  bool sharded_;
  int64_t heads_, head_dim_;  // of this shard
  double eps_;
  at::Tensor table_;  // [6, D]
  kernels::Linear qkv_, self_out_, cross_q_, cross_kv_, cross_out_, widen_, narrow_;
};

}  // namespace troupe::models
