#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/joint_block.h"
#include "models/dit/transformer_parts.h"
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

/// FLUX.1 dev and schnell. Source: FluxTransformer2DModel of diffusers, and FluxPipeline for how
/// latents become tokens.
class Flux : public DiffusionTransformer {
 public:
  Flux(const spec::FluxSpec& spec, const StagePart& part, const WeightLoader& weights,
       at::ScalarType compute, at::Device device);

  const StagePart& part() const override { return part_; }
  int64_t patch_size() const override { return kPatch; }
  int64_t hidden_width() const override { return spec_.inner_dim(); }
  int64_t heads() const override { return part_.shard.size(spec_.num_attention_heads); }
  int64_t head_dim() const override { return spec_.attention_head_dim; }
  at::ScalarType dtype() const override { return compute_; }
  int64_t bytes() const override;

  Caption project_caption(const std::vector<EncoderOutput>& text) const override;
  std::unique_ptr<CaptionCache> cache_caption(const Caption& caption,
                                              const at::Tensor& mask) const override;
  std::unique_ptr<StepCondition> condition(const StepInput& input,
                                           const CaptionCache& caption) const override;
  at::Tensor embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const override;
  at::Tensor embed_text(const CaptionCache& caption, int64_t begin, int64_t end) const override;
  at::Tensor run_blocks(at::Tensor hidden, const CallTokens& tokens, const StepCondition& condition,
                        const CaptionCache& caption, AttentionPort& attention,
                        TensorParallelPort& sums) const override;
  at::Tensor step_signal(const at::Tensor& hidden, const CallTokens& tokens,
                         const StepCondition& condition) const override;
  at::Tensor project(const at::Tensor& hidden, const StepCondition& condition, PictureSize size,
                     TokenRows rows) const override;

 private:
  static constexpr const char* kFamily = "flux";
  static constexpr int64_t kPatch = 2;
  /// Held by the first stage.
  struct Embedding {
    kernels::Linear patch, text;
  };

  RotaryAngles rotary_angles_of(PictureSize size) const;

  spec::FluxSpec spec_;
  StagePart part_;
  at::ScalarType compute_;
  at::Device device_;
  TimeTextEmbedding time_text_;
  std::optional<Embedding> embedding_;
  Blocks<JointBlock> blocks_;
  Blocks<FluxSingleBlock> singles_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
