#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/dit/blocks.h"
#include "models/dit/joint_block.h"
#include "models/dit/transformer_stage.h"

namespace troupe::models {

/// SD3 and SD3.5. Source: SD3Transformer2DModel of diffusers.
class Sd3 final : public TransformerStage {
 public:
  Sd3(const spec::Sd3Spec& spec, const StagePart& part, const WeightLoader& weights,
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
    at::Tensor positions;  // [side, side, D]
  };

  spec::Sd3Spec spec_;
  TimeTextEmbedding time_text_;
  std::optional<Embedding> embedding_;
  Blocks<JointBlock> blocks_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
