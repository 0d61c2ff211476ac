#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/rotary.h"
#include "models/dit/weight_loader.h"
#include "models/spec/flux_spec.h"

namespace troupe::models {

/// FLUX's block of one stream: attention and feed-forward side by side over text and picture.
/// Source: FluxSingleTransformerBlock.
class FluxSingleBlock {
 public:
  FluxSingleBlock(const spec::FluxSpec& spec, int index, WeightShard shard,
                  const WeightLoader& weights);

  /// embedded [B, D] after SiLU → [B, 3, D].
  at::Tensor modulation(const at::Tensor& embedded) const;
  /// hidden [B, tokens, D], contiguous, changed in place; `turns` of all its tokens.
  void run(at::Tensor& hidden, const at::Tensor& modulation, const RotaryAngles& turns,
           AttentionPort& attention, TensorParallelPort& sums) const;
  /// Returns the input of attention and feed-forward: `hidden` normed, scaled and shifted.
  at::Tensor modulated(const at::Tensor& hidden, const at::Tensor& modulation) const;
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  int slot_;
  bool sharded_;
  int64_t width_, heads_, head_dim_;
  kernels::Linear norm_, qkv_, widen_, out_, narrow_;
  at::Tensor norm_q_, norm_k_;
};

}  // namespace troupe::models
