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
#include "models/spec/hunyuan_spec.h"

namespace troupe::models {

/// HunyuanDiT's text before the blocks: the states of both encoders in one row, padding replaced by
/// learned states, and one vector pooled from T5's. Source: HunyuanDiT2DModel,
/// HunyuanDiTAttentionPool.
class HunyuanText {
 public:
  HunyuanText(const spec::HunyuanSpec& spec, const WeightLoader& weights);
  /// text[0]: BERT's states [B, text_len, C]; text[1]: T5's [B, text_len_t5, C5], all computed.
  Caption operator()(const std::vector<EncoderOutput>& text, at::Device device,
                     at::ScalarType compute) const;
  int64_t bytes() const;

 private:
  at::Tensor pooled(const at::Tensor& states) const;

  spec::HunyuanSpec spec_;
  SiluMlp widen_;
  at::Tensor padding_, positions_;
  kernels::Linear query_, key_, value_, out_;
};

/// A layer norm with weights of its own, as norm_modulate takes them.
class AffineNorm {
 public:
  AffineNorm() = default;
  AffineNorm(const WeightLoader& weights, const std::string& name, int64_t width);
  /// x [B, N, D]; `shift` [B, D] is added, or undefined.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& shift = {}) const;
  /// Norms over the last dimension of an `x` of any shape.
  at::Tensor by_head(const at::Tensor& x) const;
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor weight_, bias_, scale_;  // scale = weight − 1
};

/// HunyuanDiT's block: what an earlier block left, self attention and cross attention with turned
/// queries, feed-forward. Source: HunyuanDiTBlock.
class HunyuanBlock {
 public:
  HunyuanBlock(const spec::HunyuanSpec& spec, int index, WeightShard shard,
               const WeightLoader& weights);

  bool takes_skip() const { return takes_skip_; }
  bool leaves_skip() const { return leaves_skip_; }
  /// Keys and values of the text [B, L, C]: [B, L, 2, H, d].
  at::Tensor caption(const at::Tensor& states) const;
  /// embedded [B, D] after SiLU → what norm1 is shifted by, [B, D].
  at::Tensor shift(const at::Tensor& embedded) const { return shift_(embedded); }
  /// hidden [B, tokens, D], contiguous, changed in place; `skip` of the same shape where the block
  /// takes one.
  void run(at::Tensor& hidden, const at::Tensor& skip, const at::Tensor& shift,
           const at::Tensor& caption, const RotaryAngles& turns, AttentionPort& attention,
           TensorParallelPort& sums) const;
  /// Returns the input of the self attention: `hidden` normed and shifted.
  at::Tensor modulated(const at::Tensor& hidden, const at::Tensor& shift) const {
    return norm_self_(hidden, shift);
  }
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  int index_;
  bool sharded_, takes_skip_, leaves_skip_;
  int64_t heads_, head_dim_;
  kernels::Linear shift_, qkv_, self_out_, cross_q_, cross_kv_, cross_out_, widen_, narrow_, skip_;
  AffineNorm norm_self_, norm_cross_, norm_forward_, norm_skip_;
  AffineNorm self_q_, self_k_, text_q_, text_k_;
};

/// HunyuanDiT. Beside the hidden states a stage is given what earlier ones left for its blocks, and
/// hands on what its own leave for later ones: [current, left last, …, left first], each D wide.
/// Source: HunyuanDiT2DModel of diffusers.
class Hunyuan final : public TransformerStage {
 public:
  Hunyuan(const spec::HunyuanSpec& spec, int64_t pixels_per_latent, const StagePart& part,
          const WeightLoader& weights, at::ScalarType compute, at::Device device);

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

  RotaryAngles rotary_angles_of(PictureSize size) const;

  spec::HunyuanSpec spec_;
  int64_t pixels_per_latent_;
  SiluMlp timestep_, extra_;
  at::Tensor style_;  // [1, D], where the model has it
  kernels::Linear patch_;
  std::optional<HunyuanText> text_;
  Blocks<HunyuanBlock> blocks_;
  std::optional<LastLayer> last_;
};

}  // namespace troupe::models
