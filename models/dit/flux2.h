#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/joint_block.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/transformer_stage.h"
#include "models/dit/weight_loader.h"
#include "models/spec/flux2_spec.h"

namespace troupe::models {

/// FLUX.2's block of one stream: attention and gated feed-forward side by side over text and
/// picture, each pair of products stored as one. Source: Flux2SingleTransformerBlock.
class Flux2SingleBlock {
 public:
  Flux2SingleBlock(const spec::Flux2Spec& spec, int index, WeightShard shard,
                   const WeightLoader& weights);

  /// hidden [B, tokens, D], contiguous, changed in place; modulation [B, 3, D]; `turns` of all its
  /// tokens.
  void run(at::Tensor& hidden, const at::Tensor& modulation, const RotaryAngles& turns,
           AttentionPort& attention, TensorParallelPort& sums) const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  int slot_;
  bool sharded_;
  int64_t heads_, head_dim_;
  kernels::Linear qkv_, widen_, out_, narrow_;
  at::Tensor norm_q_, norm_k_;
};

/// FLUX.2-klein. Source: Flux2Transformer2DModel of diffusers, and Flux2KleinPipeline for its
/// positions.
class Flux2 final : public TransformerStage {
 public:
  Flux2(const spec::Flux2Spec& spec, const StagePart& part, const WeightLoader& weights,
        at::ScalarType compute, at::Device device);

  int64_t bytes() const override;
  std::unique_ptr<StepCondition> condition(const StepInput& input,
                                           const CaptionCache& caption) const override;

 private:
  Caption caption_of(const std::vector<EncoderOutput>& text) const override;
  at::Tensor tokens_of(const at::Tensor& latents, PictureSize size, TokenRows rows) const override;
  at::Tensor compute(at::Tensor hidden, const StepCondition& condition, const CaptionCache& caption,
                     const BlockCall& call) const override;
  at::Tensor signal_of(const at::Tensor& picture, const StepCondition& condition) const override;
  at::Tensor prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                           int64_t columns) const override;

  /// Held by the first stage.
  struct Embedding {
    kernels::Linear patch, text;
  };

  /// Returns the turns of tokens at these places [n, 4].
  RotaryAngles turns_at(const at::Tensor& places) const;

  spec::Flux2Spec spec_;
  SiluMlp time_;
  /// Makers of what modulates all blocks of a kind.
  kernels::Linear picture_modulation_, text_modulation_, single_modulation_;
  std::optional<Embedding> embedding_;
  Blocks<JointBlock> blocks_;
  Blocks<Flux2SingleBlock> singles_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
