#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

/// The text of a joint model at one stage: its tokens where the stage embeds, and the pooled vector
/// that conditions every step, where the family has one.
class JointCaption final : public CaptionCache {
 public:
  JointCaption(int64_t batch, at::Tensor states, at::Tensor pooled)
      : batch_(batch), states_(std::move(states)), pooled_(std::move(pooled)) {}

  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override;
  int64_t batch() const override { return batch_; }
  int64_t bytes() const override;

  /// Text tokens [begin, end), in memory of their own: blocks change them in place.
  at::Tensor tokens(int64_t begin, int64_t end) const;
  const at::Tensor& pooled() const { return pooled_; }  // [B, P]

 private:
  int64_t batch_;
  at::Tensor states_;  // [B, T, D], or undefined
  at::Tensor pooled_;
};

/// Makes the cache of what crossed to this stage; throws where shapes disagree with `width` and
/// `pooled_width`, which is 0 where a family has no pooled vector.
std::unique_ptr<CaptionCache> joint_caption(const char* family, const Caption& caption,
                                            const at::Tensor& mask, bool embeds, int64_t width,
                                            int64_t pooled_width);

/// Timestep, guidance where the model takes it, and pooled text to what modulates the blocks.
/// Source: CombinedTimestepTextProjEmbeddings, CombinedTimestepGuidanceTextProjEmbeddings.
class TimeTextEmbedding {
 public:
  TimeTextEmbedding(const WeightLoader& weights, int64_t pooled_width, int64_t width,
                    bool guidance);
  /// timestep and guidance as their sines are taken → [B, D].
  at::Tensor operator()(double timestep, double guidance, const at::Tensor& pooled) const;
  int64_t bytes() const { return timestep_.bytes() + guidance_.bytes() + text_.bytes(); }

 private:
  bool takes_guidance_;
  SiluMlp timestep_, guidance_, text_;
};

/// hidden [B, t + n, D] as text [B, t, D] and picture [B, n, D], in memory of their own.
struct TwoStreams {
  at::Tensor text, picture;
  TwoStreams(const at::Tensor& hidden, int64_t texts);
  at::Tensor joined() const;
};

}  // namespace troupe::models
