#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/transformer_stage.h"
#include "models/dit/weight_loader.h"
#include "models/spec/krea2_spec.h"

namespace troupe::models {

/// Krea 2's block: several heads of queries share one of keys and values, and a gate made of the
/// block's input multiplies what they attend to. The joint ones are modulated by the timestep,
/// those of the text alone are not. Source: Krea2TransformerBlock, Krea2TextFusionBlock.
class Krea2Block {
 public:
  Krea2Block(const spec::Krea2Sizes& sizes, const std::string& prefix, bool modulated,
             WeightShard shard, const WeightLoader& weights);

  /// Modulation of this block, its norms' weights among it, from that of all blocks, [B, 6, D].
  at::Tensor modulation(const at::Tensor& shared) const;
  /// hidden [B, tokens, D], contiguous, changed in place; `modulation` undefined where there is
  /// none.
  void run(at::Tensor& hidden, const at::Tensor& modulation, const RotaryAngles& turns,
           AttentionPort& attention, int slot, TensorParallelPort& sums) const;
  /// Returns the input of the attention: `hidden` normed and modulated.
  at::Tensor attention_input(const at::Tensor& hidden, const at::Tensor& modulation) const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);
  int64_t bytes() const;

 private:
  at::Tensor attend(const at::Tensor& normal, const RotaryAngles& turns, AttentionPort& attention,
                    int slot) const;

  spec::Krea2Sizes sizes_;
  bool sharded_;
  int64_t heads_, kv_heads_;  // of this shard
  int64_t skipped_;           // heads of queries of others that share its first keys and values
  kernels::Linear query_, kv_, out_, widen_, narrow_;
  at::Tensor table_;                              // [6, D]
  at::Tensor norm_q_, norm_k_;                    // with the 1 that is added to them
  at::Tensor before_attention_, before_forward_;  // without it
};

/// Krea 2. The blocks of the text alone are computed once per job, with the text. Source:
/// Krea2Transformer2DModel of diffusers, and Krea2Pipeline for time and positions.
class Krea2 final : public TransformerStage {
 public:
  Krea2(const spec::Krea2Spec& spec, const StagePart& part, const WeightLoader& weights,
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
    kernels::Linear patch, text_first, text_second;
    at::Tensor text_norm;  // [D of the text]
    at::Tensor projector;  // [1, layers]
    std::vector<Krea2Block> layerwise, refiners;
  };
  /// Held by the last stage.
  struct Ending {
    kernels::Linear project;
    at::Tensor table, norm;  // [2, D], [D]
  };

  /// The states of one text's tokens, [tokens, layers, D of the text] → [1, tokens, D].
  at::Tensor fused(const at::Tensor& states) const;
  RotaryAngles turns_of(PictureSize size) const;

  spec::Krea2Spec spec_;
  kernels::Linear time_first_, time_second_, modulate_;
  std::optional<Embedding> embedding_;
  Blocks<Krea2Block> blocks_;
  std::optional<Ending> ending_;
};

}  // namespace troupe::models
