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
#include "models/spec/qwen_image_spec.h"

namespace troupe::models {

/// Qwen-Image, also where it edits pictures. Source: QwenImageTransformer2DModel of diffusers, and
/// QwenImagePipeline for how latents become tokens.
class QwenImage final : public TransformerStage {
 public:
  QwenImage(const spec::QwenImageSpec& spec, const StagePart& part, const WeightLoader& weights,
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
    at::Tensor text_norm;  // [D of the text encoder]
  };

  /// Returns the turns of tokens at these frames, rows and columns, [n] each.
  RotaryAngles turns_at(const at::Tensor& frame, const at::Tensor& row,
                        const at::Tensor& column) const;

  /// Returns the turns of a picture's tokens: its middle is at 0.
  RotaryAngles turns_of(PictureSize size, int64_t frame) const;

  spec::QwenImageSpec spec_;
  SiluMlp time_;
  std::optional<Embedding> embedding_;
  Blocks<JointBlock> blocks_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
