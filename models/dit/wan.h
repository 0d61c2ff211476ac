#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/transformer_stage.h"
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
  /// The same of what a vision tower saw, [1, T, 2, H, d] and [1, T], for all items; undefined
  /// where the model has none.
  at::Tensor seen, seen_squares;

  WanText items(int64_t begin, int64_t end) const;
  int64_t bytes() const;
};

/// Values that modulate the tokens of a call. The first ones may be of frames that are given.
struct WanModulation {
  at::Tensor made;   ///< [B, 6, D]
  at::Tensor given;  ///< [B, 6, D], of timestep 0; undefined where no frame is given
  int64_t given_tokens = 0;
};

/// Self attention, cross attention and feed-forward, modulated by the timestep.
/// Source: WanTransformerBlock of diffusers.
class WanBlock {
 public:
  WanBlock(const spec::WanSpec& spec, int index, WeightShard shard, const WeightLoader& weights);

  /// states [B, L, D], projected; seen [1, T, D] likewise, or undefined.
  WanText text(const at::Tensor& states, const at::Tensor& seen) const;
  /// hidden [B, tokens, D], contiguous, changed in place; tokens may be 0.
  void run(at::Tensor& hidden, const WanModulation& modulation, const WanText& text,
           const RotaryAngles& turns, AttentionPort& attention, TensorParallelPort& sums) const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor self(const at::Tensor& normal, const RotaryAngles& turns, AttentionPort& attention,
                  TensorParallelPort& sums) const;
  at::Tensor cross(const at::Tensor& hidden, const WanText& text, TensorParallelPort& sums) const;
  /// Returns keys and values of `states` [B, L, D], and the squares of keys that are not normed.
  std::pair<at::Tensor, at::Tensor> keys_of(const at::Tensor& states, const kernels::Linear& kv,
                                            const NormAcrossHeads& norm) const;

  int index_;
  bool sharded_;
  int64_t heads_, head_dim_;  // of this shard
  double eps_;
  at::Tensor table_;                     // [6, D]
  at::Tensor cross_scale_, cross_bias_;  // [1, D] of the cross attention's norm, less 1
  kernels::Linear qkv_, self_out_, cross_q_, cross_kv_, cross_out_, widen_, narrow_;
  NormAcrossHeads self_q_, self_k_, text_q_, text_k_;
  bool sees_;  // what a vision tower saw
  kernels::Linear seen_kv_;
  NormAcrossHeads seen_k_;
};

/// Wan 2.1 and 2.2, video from text or from its first frame. A video is a tall picture, its latent
/// frames one below the other; a token knows its frame from its row. The prediction of a frame that
/// is given is as if it were made: nobody uses it. Source: WanTransformer3DModel of diffusers, and
/// WanPipeline for what becomes of the text.
class Wan final : public TransformerStage {
 public:
  Wan(const spec::WanSpec& spec, const StagePart& part, const WeightLoader& weights,
      at::ScalarType compute, at::Device device);

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

  /// Held by the first stage.
  struct Embedding {
    kernels::Linear patch, text_first, text_second;
  };

  /// Makes [1, T, D] of a vision tower's states [1, T, d]. Held by every stage.
  class SeenEmbedder {
   public:
    SeenEmbedder(const spec::WanSpec& spec, const WeightLoader& weights);
    at::Tensor operator()(const at::Tensor& states) const;
    int64_t bytes() const;

   private:
    int64_t tokens_;  // that have positions; 0: any number
    at::Tensor positions_, first_weight_, first_bias_, last_weight_, last_bias_;
    kernels::Linear first_, second_;
  };

  RotaryAngles rotary_angles_of(PictureSize size) const;

  spec::WanSpec spec_;
  SiluMlp time_;
  kernels::Linear modulation_;
  std::optional<Embedding> embedding_;
  std::optional<SeenEmbedder> seen_;
  Blocks<WanBlock> blocks_;
  at::Tensor last_table_;  // [2, D]: shift, scale
  kernels::Linear last_;
};

}  // namespace troupe::models
