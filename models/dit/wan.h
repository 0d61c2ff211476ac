#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/dit/blocks.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/wan_block.h"

namespace troupe::models {

/// Wan 2.1, video from text. A video is a tall picture, its latent frames one below the other; a
/// token knows its frame from its row. Source: WanTransformer3DModel of diffusers, and WanPipeline
/// for what becomes of the text.
class Wan : public DiffusionTransformer {
 public:
  Wan(const spec::WanSpec& spec, const StagePart& part, const WeightLoader& weights,
      at::ScalarType compute, at::Device device);

  const StagePart& part() const override { return part_; }
  int64_t patch_size() const override { return spec_.patch_size; }
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
  at::Tensor run_blocks(at::Tensor hidden, const CallTokens& tokens, const StepCondition& condition,
                        const CaptionCache& caption, AttentionPort& attention,
                        TensorParallelPort& sums) const override;
  at::Tensor step_signal(const at::Tensor& hidden, const CallTokens& tokens,
                         const StepCondition& condition) const override;
  at::Tensor project(const at::Tensor& hidden, const StepCondition& condition, PictureSize size,
                     TokenRows rows) const override;

 private:
  static constexpr const char* kFamily = "wan";
  /// Held by the first stage.
  struct Embedding {
    kernels::Linear patch, text_first, text_second;
  };

  RotaryAngles rotary_angles_of(PictureSize size) const;

  spec::WanSpec spec_;
  StagePart part_;
  at::ScalarType compute_;
  at::Device device_;
  SiluMlp time_;
  kernels::Linear modulation_;
  std::optional<Embedding> embedding_;
  Blocks<WanBlock> blocks_;
  at::Tensor last_table_;  // [2, D]: shift, scale
  kernels::Linear last_;
};

}  // namespace troupe::models
