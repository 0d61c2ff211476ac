#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/dit/blocks.h"
#include "models/dit/hunyuan_block.h"
#include "models/dit/hunyuan_text.h"

namespace troupe::models {

/// HunyuanDiT. Beside the hidden states a stage is given what earlier ones left for its blocks, and
/// hands on what its own leave for later ones: [current, left last, …, left first], each D wide.
/// Source: HunyuanDiT2DModel of diffusers.
class Hunyuan : public DiffusionTransformer {
 public:
  Hunyuan(const spec::HunyuanSpec& spec, int64_t pixels_per_latent, const StagePart& part,
          const WeightLoader& weights, at::ScalarType compute, at::Device device);

  const StagePart& part() const override { return part_; }
  int64_t patch_size() const override { return spec_.patch_size; }
  int64_t hidden_width() const override { return spec_.inner_dim(); }
  int64_t input_width() const override { return edge_widths_.front(); }
  int64_t output_width() const override { return edge_widths_.back(); }
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
  static constexpr const char* kFamily = "hunyuan";
  RotaryAngles rotary_angles_of(PictureSize size) const;

  spec::HunyuanSpec spec_;
  int64_t pixels_per_latent_;
  StagePart part_;
  at::ScalarType compute_;
  at::Device device_;
  std::vector<int64_t> edge_widths_;  // before each of its blocks, and after the last
  SiluMlp timestep_, extra_;
  at::Tensor style_;  // [1, D], where the model has it
  kernels::Linear patch_;
  std::optional<HunyuanText> text_;
  Blocks<HunyuanBlock> blocks_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
