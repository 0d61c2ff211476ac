#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/rotary.h"
#include "models/dit/weight_loader.h"
#include "models/spec/hunyuan_spec.h"

namespace troupe::models {

/// A layer norm with weights of its own, as norm_modulate takes them.
class AffineNorm {
 public:
  AffineNorm() = default;
  AffineNorm(const WeightLoader& weights, const std::string& name, int64_t width);
  /// x [B, N, D]; `shift` [B, D] is added, or undefined.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& shift = {}) const;
  /// Norms over the last dimension of an `x` of any shape.
  at::Tensor by_head(const at::Tensor& x) const;
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor weight_, bias_, scale_;  // scale = weight − 1
};

/// HunyuanDiT's block: what an earlier block left, self attention and cross attention with turned
/// queries, feed-forward. Source: HunyuanDiTBlock.
class HunyuanBlock {
 public:
  HunyuanBlock(const spec::HunyuanSpec& spec, int index, WeightShard shard,
               const WeightLoader& weights);

  bool takes_skip() const { return takes_skip_; }
  bool leaves_skip() const { return leaves_skip_; }
  /// Keys and values of the text [B, L, C]: [B, L, 2, H, d].
  at::Tensor caption(const at::Tensor& states) const;
  /// embedded [B, D] after SiLU → what norm1 is shifted by, [B, D].
  at::Tensor shift(const at::Tensor& embedded) const { return shift_(embedded); }
  /// hidden [B, tokens, D], contiguous, changed in place; `skip` of the same shape where the block
  /// takes one.
  void run(at::Tensor& hidden, const at::Tensor& skip, const at::Tensor& shift,
           const at::Tensor& caption, const RotaryAngles& turns, AttentionPort& attention,
           TensorParallelPort& sums) const;
  /// Returns the input of the self attention: `hidden` normed and shifted.
  at::Tensor modulated(const at::Tensor& hidden, const at::Tensor& shift) const {
    return norm_self_(hidden, shift);
  }
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  int index_;
  bool sharded_, takes_skip_, leaves_skip_;
  int64_t heads_, head_dim_;
  kernels::Linear shift_, qkv_, self_out_, cross_q_, cross_kv_, cross_out_, widen_, narrow_, skip_;
  AffineNorm norm_self_, norm_cross_, norm_forward_, norm_skip_;
  AffineNorm self_q_, self_k_, text_q_, text_k_;
};

}  // namespace troupe::models
