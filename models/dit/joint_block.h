#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/rotary.h"
#include "models/dit/weight_loader.h"
#include "models/spec/sd3_spec.h"

namespace troupe::models {

/// Text tokens and picture tokens, each with weights of their own, in one attention: the block of
/// SD3 and the two-stream block of FLUX. Source: JointTransformerBlock, FluxTransformerBlock.
class JointBlock {
 public:
  /// Shifts, scales and gates, [B, n, D] each.
  struct Modulation {
    at::Tensor picture, text;
  };

  static std::vector<at::Tensor> tensors_of(const std::vector<Modulation>& all);

  /// `slot`: slot of the attention over everything; that of the attention over the picture alone is
  /// the next one.
  JointBlock(const spec::JointBlockShape& shape, const std::string& prefix, int slot,
             WeightShard shard, const WeightLoader& weights);

  /// embedded [B, D] after SiLU.
  Modulation modulation(const at::Tensor& embedded) const;
  /// text [B, t, D] and picture [B, n, D], contiguous, changed in place; the last block leaves the
  /// text as it is. `turns`: of the picture's tokens, may be empty.
  void run(at::Tensor& text, at::Tensor& picture, const Modulation& modulation,
           const RotaryAngles& turns, AttentionPort& attention, TensorParallelPort& sums) const;
  /// Returns the picture's input of the attention: `picture` normed, scaled and shifted.
  at::Tensor modulated(const at::Tensor& picture, const Modulation& modulation) const;
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  struct Attention {
    kernels::Linear qkv, out;
    at::Tensor norm_q, norm_k;  // undefined without norms
    int64_t bytes() const;
    void list_tensors(std::vector<at::Tensor*>& all);
  };
  struct Forward {
    kernels::Linear widen, narrow;
  };
  Attention attention_of(const WeightLoader& weights, const std::string& name,
                         const char* const names[3], const std::string& out,
                         const char* norms) const;
  Forward forward_of(const WeightLoader& weights, const std::string& name) const;
  at::Tensor qkv_of(const Attention& of, const at::Tensor& normal, const RotaryAngles& turns) const;
  at::Tensor joined(const at::Tensor& heads) const;
  void feed_forward(at::Tensor& hidden, const Forward& forward, const at::Tensor& factors,
                    TensorParallelPort& sums) const;

  spec::JointBlockShape shape_;
  int slot_;
  WeightShard shard_;
  int64_t heads_;  // of this shard
  kernels::Linear norm_, norm_text_;
  Attention picture_, text_, second_;
  Forward forward_, forward_text_;
};

}  // namespace troupe::models
