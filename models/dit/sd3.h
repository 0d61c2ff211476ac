#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/dit/blocks.h"
#include "models/dit/joint_block.h"

namespace troupe::models {

/// SD3 and SD3.5. Source: SD3Transformer2DModel of diffusers.
class Sd3 : public DiffusionTransformer {
 public:
  Sd3(const spec::Sd3Spec& spec, const StagePart& part, const WeightLoader& weights,
      at::ScalarType compute, at::Device device);

  const StagePart& part() const override { return part_; }
  int64_t patch_size() const override { return spec_.patch_size; }
  int64_t hidden_width() const override { return spec_.inner_dim(); }
  BlockRange attentions() const override { return slots_; }
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
  static constexpr const char* kFamily = "sd3";
  /// Held by the first stage.
  struct Embedding {
    kernels::Linear patch, text;
    at::Tensor positions;  // [side, side, D]
  };

  spec::Sd3Spec spec_;
  StagePart part_;
  at::ScalarType compute_;
  at::Device device_;
  BlockRange slots_;
  TimeTextEmbedding time_text_;
  std::optional<Embedding> embedding_;
  Blocks<JointBlock> blocks_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
