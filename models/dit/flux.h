#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/joint_block.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/transformer_stage.h"
#include "models/dit/weight_loader.h"
#include "models/spec/flux_spec.h"

namespace troupe::models {

struct FluxStep;

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
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor widened(const at::Tensor& normal) const;

  int slot_;
  bool sharded_;
  int64_t width_, heads_, head_dim_;
  bool gated_;
  kernels::Linear norm_, qkv_, widen_, out_, narrow_;
  at::Tensor norm_q_, norm_k_;
};

/// Chroma's small network from a timestep to all that modulates the blocks: each vector is made
/// from the sines of the timestep, of no guidance and of its own number. Source: ChromaApproximator
/// and ChromaCombinedTimestepTextProjEmbeddings.
class Approximator {
 public:
  Approximator(const spec::FluxSpec& spec, const WeightLoader& weights);
  /// Returns the first `count` vectors, [1, count, D] in `compute` on the device.
  at::Tensor operator()(double timestep, int64_t count, at::ScalarType compute,
                        at::Device device) const;
  int64_t bytes() const;

 private:
  struct Layer {
    SiluMlp mlp;
    at::Tensor norm;  // [hidden]
  };

  int64_t channels_;
  kernels::Linear in_, out_;
  std::vector<Layer> layers_;
};

/// FLUX.1 dev and schnell, Chroma, Ovis-Image and LongCat-Image. Source: FluxTransformer2DModel,
/// ChromaTransformer2DModel, OvisImageTransformer2DModel and LongCatImageTransformer2DModel of
/// diffusers, and FluxPipeline for how latents become tokens.
class Flux final : public TransformerStage {
 public:
  Flux(const spec::FluxSpec& spec, const StagePart& part, const WeightLoader& weights,
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
    at::Tensor text_norm;  // undefined where the text is not normed
  };

  /// Makes what modulates the stage's blocks and the last norm, in one of the two ways that models
  /// have.
  void embed(FluxStep& step, const StepInput& input, const JointCaption& text) const;
  void approximate(FluxStep& step, double timestep, int64_t batch) const;
  /// Returns the turns of a picture's tokens, whose first coordinate is `index`.
  RotaryAngles rotary_angles_of(PictureSize size, int64_t index = 0) const;
  RotaryAngles rotary_angles_of_text(int64_t tokens) const;
  RotaryAngles rotary_angles_at(const at::Tensor& modality, const at::Tensor& row,
                                const at::Tensor& column) const;

  spec::FluxSpec spec_;
  std::optional<TimeTextEmbedding> time_text_;
  std::optional<SiluMlp> time_;
  std::optional<Approximator> approximator_;
  std::optional<Embedding> embedding_;
  Blocks<JointBlock> blocks_;
  Blocks<FluxSingleBlock> singles_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
