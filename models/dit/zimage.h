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
#include "models/spec/zimage_spec.h"

namespace troupe::models {

/// Rotary angles of some batch items side by side: their texts are of one length.
struct ItemAngles {
  int64_t begin = 0;
  int64_t end = 0;
  RotaryAngles turns;
};

/// Z-Image's block: norms before and after attention and feed-forward. Of blocks that are
/// modulated, scales and gates come from the timestep. Source: ZImageTransformerBlock.
class ZImageBlock {
 public:
  /// Attention of the block, and what it attends to.
  struct Attending {
    AttentionPort& port;
    int slot;
    Attend to;
  };

  ZImageBlock(const spec::ZImageSpec& spec, const std::string& prefix, bool modulated,
              WeightShard shard, const WeightLoader& weights);

  /// embedded [B, condition width] → scales and gates [B, 4, D].
  at::Tensor modulation(const at::Tensor& embedded) const;
  /// hidden [B, tokens, D], changed in place; `angles` of all its tokens; `modulation` undefined
  /// where there is none.
  void run(at::Tensor& hidden, const at::Tensor& modulation, const std::vector<ItemAngles>& angles,
           const Attending& attention, TensorParallelPort& sums) const;
  /// Returns the input of the attention: `hidden` normed and scaled.
  at::Tensor attention_input(const at::Tensor& hidden, const at::Tensor& modulation) const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);
  int64_t bytes() const;

 private:
  at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) const;
  /// hidden += gate · norm(product(x)), of all shards together.
  void add(at::Tensor& hidden, const kernels::Linear& product, const at::Tensor& x,
           const at::Tensor& norm, const at::Tensor& gate, TensorParallelPort& sums) const;

  bool sharded_;
  int64_t width_, heads_, head_dim_;
  double eps_;
  kernels::Linear modulate_, qkv_, out_, widen_, narrow_;
  at::Tensor norm_q_, norm_k_, before_attention_, after_attention_, before_forward_, after_forward_;
};

/// Z-Image and Z-Image-Turbo. The blocks that refine the picture's tokens are the first ones of the
/// whole model; those that refine the text's are computed once per job with the text.
/// Source: ZImageTransformer2DModel of diffusers, and ZImagePipeline for time and sign.
class ZImage final : public TransformerStage {
 public:
  ZImage(const spec::ZImageSpec& spec, const StagePart& part, const WeightLoader& weights,
         at::ScalarType compute, at::Device device);

  int64_t bytes() const override;
  std::unique_ptr<StepCondition> condition(const StepInput& input,
                                           const CaptionCache& caption) const override;

 private:
  Caption caption_of(const std::vector<EncoderOutput>& text) const override;
  std::unique_ptr<CaptionCache> cache_of(const Caption& caption,
                                         const at::Tensor& mask) const override;
  at::Tensor tokens_of(const at::Tensor& latents, PictureSize size, TokenRows rows) const override;
  at::Tensor compute(at::Tensor hidden, const StepCondition& condition, const CaptionCache& caption,
                     const BlockCall& call) const override;
  at::Tensor signal_of(const at::Tensor& picture, const StepCondition& condition) const override;
  at::Tensor prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                           int64_t columns) const override;

  /// Held by the first stage.
  struct Embedding {
    kernels::Linear patch, text;
    at::Tensor text_norm, picture_fill, text_fill;
    std::vector<ZImageBlock> refine_text;
  };
  /// Held by the last stage.
  struct Ending {
    kernels::Linear condition, project;
  };

  /// Angles of tokens whose three coordinates stand in `places` [n, 3].
  RotaryAngles angles_of(const at::Tensor& places) const;

  spec::ZImageSpec spec_;
  kernels::Linear time_first_, time_second_;
  std::optional<Embedding> embedding_;
  Blocks<ZImageBlock> blocks_;
  std::optional<Ending> ending_;
};

}  // namespace troupe::models
