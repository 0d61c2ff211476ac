#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/blocks.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/transformer_stage.h"
#include "models/dit/weight_loader.h"
#include "models/spec/pixart_spec.h"

namespace troupe::models {

/// Position features of one axis: [count, width] float32, sines first, computed in float64.
/// Positions run from 0 to base / interpolation whatever the count.
/// Source: get_2d_sincos_pos_embed of diffusers.
at::Tensor axis_positions(int64_t count, int64_t base, double interpolation, int64_t width);

/// Timestep, and resolution and aspect ratio where the model has them, to what modulates the
/// blocks. Source: AdaLayerNormSingle, PixArtAlphaCombinedTimestepSizeEmbeddings.
class PixArtCondition {
 public:
  struct Values {
    at::Tensor modulation;  ///< [B, 6, D]
    at::Tensor embedded;    ///< [B, D]
  };

  PixArtCondition(const spec::PixArtSpec& spec, const WeightLoader& weights);
  /// height and width in pixels.
  Values operator()(double timestep, int64_t batch, int64_t height, int64_t width,
                    at::ScalarType dtype, at::Device device) const;
  int64_t bytes() const;

 private:
  int64_t width_;
  bool sizes_;
  SiluMlp timestep_, resolution_, aspect_ratio_;
  kernels::Linear modulation_;
};

/// Latents to tokens with their positions, and text states to the width of the blocks.
class PixArtEmbedding {
 public:
  PixArtEmbedding(const spec::PixArtSpec& spec, const WeightLoader& weights);

  at::Tensor caption(const at::Tensor& states) const;
  at::Tensor tokens(const at::Tensor& latents, PictureSize size, TokenRows rows) const;
  int64_t bytes() const;

 private:
  spec::PixArtSpec spec_;
  kernels::Linear patch_, caption_first_, caption_second_;
};

/// Caption tokens that the cross attention sees. Tokens that are masked out are dropped; batch
/// items of equal masks stay together.
class CaptionTokens {
 public:
  struct Group {
    int64_t first = 0;  ///< batch items [first, first + count)
    int64_t count = 0;
    at::Tensor states;               ///< [count, kept, D]
    std::optional<at::Tensor> bias;  ///< [count, kept], only where an item has no token at all
  };

  /// projected [B, L, D], mask [B, L] bool.
  CaptionTokens(const at::Tensor& projected, const at::Tensor& mask);
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<Group> groups_;
};

/// Keys and values of one block's cross attention.
struct CaptionKv {
  struct Group {
    at::Tensor kv;  ///< [count, kept, 2, H, d]
    std::optional<at::Tensor> bias;
  };
  std::vector<Group> groups;
  /// Returns the keys and values of batch items [begin, end), which share this object's memory.
  CaptionKv items(int64_t begin, int64_t end) const;
  int64_t bytes() const;
};

/// Self attention, cross attention and feed-forward with adaLN-single modulation.
/// Source: BasicTransformerBlock of diffusers with norm_type ada_norm_single.
class PixArtBlock {
 public:
  PixArtBlock(const spec::PixArtSpec& spec, int index, WeightShard shard,
              const WeightLoader& weights);

  CaptionKv caption(const CaptionTokens& tokens) const;
  /// hidden [B, tokens, D], contiguous, changed in place; modulation [B, 6, D].
  void run(at::Tensor& hidden, const at::Tensor& modulation, const CaptionKv& caption,
           AttentionPort& attention, TensorParallelPort& sums) const;
  /// Returns the input of the self attention: `hidden` normed, scaled and shifted.
  at::Tensor modulated(const at::Tensor& hidden, const at::Tensor& modulation) const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  at::Tensor self(const at::Tensor& normal, AttentionPort& attention) const;
  at::Tensor cross(const at::Tensor& hidden, const CaptionKv& caption) const;

  int index_;
  bool sharded_;
  int64_t heads_, head_dim_;  // of this shard
  double eps_;
  at::Tensor table_;  // [6, D]
  kernels::Linear qkv_, self_out_, cross_q_, cross_kv_, cross_out_, widen_, narrow_;
};

/// PixArt-α and PixArt-Σ. Source: PixArtTransformer2DModel of diffusers.
class PixArt final : public TransformerStage {
 public:
  /// pixels_per_latent turns latent sizes into the pixels that the size conditions speak of.
  PixArt(const spec::PixArtSpec& spec, int64_t pixels_per_latent, const StagePart& part,
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

  spec::PixArtSpec spec_;
  int64_t pixels_per_latent_;
  PixArtCondition condition_;
  std::optional<PixArtEmbedding> embedding_;
  Blocks<PixArtBlock> blocks_;
  at::Tensor last_table_;  // [2, D]: shift, scale
  kernels::Linear last_;   // to the noise channels alone
};

}  // namespace troupe::models
