#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/dit/blocks.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/pixart_block.h"
#include "models/dit/pixart_embeddings.h"
#include "models/dit/weight_loader.h"
#include "models/spec/pixart_spec.h"

namespace troupe::models {

/// PixArt-α and PixArt-Σ. Source: PixArtTransformer2DModel of diffusers.
class PixArt : public DiffusionTransformer {
 public:
  /// pixels_per_latent turns latent sizes into the pixels that the size conditions speak of.
  PixArt(const spec::PixArtSpec& spec, int64_t pixels_per_latent, const StagePart& part,
         const WeightLoader& weights, at::ScalarType compute, at::Device device);

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
  static constexpr const char* kFamily = "pixart";
  spec::PixArtSpec spec_;
  int64_t pixels_per_latent_;
  StagePart part_;
  at::ScalarType compute_;
  at::Device device_;
  PixArtCondition condition_;
  std::optional<PixArtEmbedding> embedding_;
  Blocks<PixArtBlock> blocks_;
  at::Tensor last_table_;  // [2, D]: shift, scale
  kernels::Linear last_;   // to the noise channels alone
};

}  // namespace troupe::models
