#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/weight_loader.h"
#include "models/spec/wan_spec.h"

namespace troupe::models {

/// RMS norm over all heads together, of which this may be a shard's part.
class NormAcrossHeads {
 public:
  NormAcrossHeads() = default;
  NormAcrossHeads(const WeightLoader& weights, const std::string& name, int64_t width, Slice own,
                  double eps);

  /// x [B, n, H, d], all heads, in place.
  void whole(at::Tensor x) const;
  /// x [B, n, H, d], some heads; squares [B, n] float32 are all heads' sums of squares. In place.
  void part(at::Tensor x, const at::Tensor& squares) const;
  /// Returns the sums of squares of these heads, [B, n] float32.
  static at::Tensor squares(const at::Tensor& x);
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor weight_;  // of the own heads
  int64_t width_ = 0;  // of all heads
  double eps_ = 0;
};

/// Keys and values of one block's cross attention.
struct WanText {
  at::Tensor kv;       ///< [B, L, 2, H, d]; keys are normed where the weights are whole
  at::Tensor squares;  ///< [B, L] float32 of the own heads' keys, where they are a shard

  WanText items(int64_t begin, int64_t end) const;
  int64_t bytes() const;
};

/// Self attention, cross attention and feed-forward, modulated by the timestep.
/// Source: WanTransformerBlock of diffusers.
class WanBlock {
 public:
  WanBlock(const spec::WanSpec& spec, int index, WeightShard shard, const WeightLoader& weights);

  /// states [B, L, D], projected.
  WanText text(const at::Tensor& states) const;
  /// hidden [B, tokens, D], contiguous, changed in place; modulation [B, 6, D]; tokens may be 0.
  void run(at::Tensor& hidden, const at::Tensor& modulation, const WanText& text,
           const RotaryAngles& turns, AttentionPort& attention, TensorParallelPort& sums) const;
  int64_t bytes() const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor self(const at::Tensor& normal, const RotaryAngles& turns, AttentionPort& attention,
                  TensorParallelPort& sums) const;
  at::Tensor cross(const at::Tensor& hidden, const WanText& text, TensorParallelPort& sums) const;

  int index_;
  bool sharded_;
  int64_t heads_, head_dim_;  // of this shard
  double eps_;
  at::Tensor table_;                     // [6, D]
  at::Tensor cross_scale_, cross_bias_;  // [1, D] of the cross attention's norm, less 1
  kernels::Linear qkv_, self_out_, cross_q_, cross_kv_, cross_out_, widen_, narrow_;
  NormAcrossHeads self_q_, self_k_, text_q_, text_k_;
};

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
