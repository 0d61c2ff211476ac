#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/dit/diffusion_transformer.h"
#include "models/spec/transformer_facts.h"

namespace troupe::models {

/// Throws std::invalid_argument: a tensor of `family` has another shape than the expected one, in
/// which -1 stands for any size.
[[noreturn]] void refuse_shape(const char* family, const char* what, const at::Tensor& given,
                               at::IntArrayRef expected);

/// Step condition of a TransformerStage. A family's own adds what modulates its blocks.
struct StageStep : StepCondition {
  int64_t batch = 0;
};

/// Numbers of tokens of the texts of a joint model.
struct TextLengths {
  int64_t tokens = 0;                  ///< Number of every text's tokens, padding included
  std::vector<int64_t> of_items = {};  ///< Number of each item's, without padding
  /// Sizes of the pictures to edit, whose tokens stand behind the text's.
  std::vector<PictureSize> references = {};
};

/// The text of a joint model at one stage: its tokens where the stage embeds, and the pooled vector
/// that conditions every step, where the family has one.
class JointCaption final : public CaptionCache {
 public:
  JointCaption(int64_t batch, at::Tensor states, at::Tensor pooled, TextLengths lengths = {})
      : batch_(batch),
        states_(std::move(states)),
        pooled_(std::move(pooled)),
        lengths_(std::move(lengths)) {}

  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override;
  int64_t batch() const override { return batch_; }
  int64_t bytes() const override;

  /// Text tokens [begin, end), in memory of their own: blocks change them in place.
  at::Tensor tokens(int64_t begin, int64_t end) const;
  const at::Tensor& pooled() const { return pooled_; }  // [B, P]
  /// Numbers of tokens; those of items where the family keeps them.
  const TextLengths& lengths() const { return lengths_; }

 private:
  int64_t batch_;
  at::Tensor states_;  // [B, T, D], or undefined
  at::Tensor pooled_;
  TextLengths lengths_;
};

/// Stage of a transformer whose sizes are those of its family's facts, and what all families have
/// in common: checks of parts and arguments, and the text of joint models. A family has the weights
/// and the arithmetic: the functions that are pure here, `condition` and `bytes`. They are called
/// with arguments that were checked, on stages that hold what they need.
class TransformerStage : public DiffusionTransformer {
 public:
  const StagePart& part() const final { return part_; }
  int64_t patch_size() const final { return facts_.patch_size; }
  int64_t hidden_width() const final { return facts_.inner_dim(); }
  int64_t input_width() const final { return edge_widths_.front(); }
  int64_t output_width() const final { return edge_widths_.back(); }
  BlockRange attentions() const final;
  int64_t heads() const final { return part_.shard.size(facts_.num_attention_heads); }
  int64_t head_dim() const final { return facts_.attention_head_dim; }
  at::ScalarType dtype() const final { return compute_; }

  Caption project_caption(const std::vector<EncoderOutput>& text) const final;
  std::unique_ptr<CaptionCache> cache_caption(const Caption& caption,
                                              const at::Tensor& mask) const final;
  at::Tensor embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const final;
  at::Tensor embed_text(const CaptionCache& caption, int64_t begin, int64_t end) const final;
  at::Tensor run_blocks(at::Tensor hidden, const CallTokens& tokens, const StepCondition& condition,
                        const CaptionCache& caption, AttentionPort& attention,
                        TensorParallelPort& sums) const final;
  at::Tensor step_signal(const at::Tensor& hidden, const CallTokens& tokens,
                         const StepCondition& condition) const final;
  at::Tensor project(const at::Tensor& hidden, const StepCondition& condition, PictureSize size,
                     TokenRows rows) const final;

 protected:
  /// Blocks that a call computes, counted from the stage's first one, the tokens of the call, and
  /// the ports.
  struct BlockCall {
    int begin = 0;
    int end = 0;
    const CallTokens& tokens;
    AttentionPort& attention;
    TensorParallelPort& sums;
  };

  /// `family` begins the text of errors. Throws std::invalid_argument for blocks that the model
  /// does not have and for a shard that cannot be.
  TransformerStage(const char* family, spec::TransformerFacts facts, const StagePart& part,
                   at::ScalarType compute, at::Device device);

  /// Text encoders' outputs → what is sent to all stages. The stage embeds.
  virtual Caption caption_of(const std::vector<EncoderOutput>& text) const = 0;
  /// Returns what the stage's blocks need of a caption; if a family does not say otherwise, a
  /// JointCaption.
  virtual std::unique_ptr<CaptionCache> cache_of(const Caption& caption,
                                                 const at::Tensor& mask) const;
  /// Latents and the channels beside them, on the device and in the compute dtype → hidden [B,
  /// tokens, D]. The stage embeds.
  virtual at::Tensor tokens_of(const at::Tensor& latents, PictureSize size,
                               TokenRows rows) const = 0;
  /// Runs the call's blocks, as `run_blocks`.
  virtual at::Tensor compute(at::Tensor hidden, const StepCondition& condition,
                             const CaptionCache& caption, const BlockCall& call) const = 0;
  /// picture [B, tokens, D], contiguous → what `step_signal` returns. The stage has block 0.
  virtual at::Tensor signal_of(const at::Tensor& picture, const StepCondition& condition) const = 0;
  /// hidden of whole rows of `columns` tokens → prediction, as `project`. The stage projects.
  virtual at::Tensor prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                   int64_t columns) const = 0;

  /// Returns a condition as the family's own kind; throws std::invalid_argument for any other.
  template <class Step>
  const Step& step_of(const StepCondition& condition) const {
    return as<Step>(condition, "step condition");
  }
  /// Returns a caption as the family's own kind; throws std::invalid_argument for any other.
  template <class Cache>
  const Cache& text_of(const CaptionCache& caption) const {
    return as<Cache>(caption, "caption cache");
  }
  /// Throws std::invalid_argument unless a condition or a caption has values for `given` blocks, as
  /// many as the stage has.
  void require_blocks(size_t given) const;
  at::Tensor on_device(const at::Tensor& tensor) const { return tensor.to(device_, compute_); }

  const char* const family_;
  const spec::TransformerFacts facts_;
  const StagePart part_;
  const at::ScalarType compute_;
  const at::Device device_;

 private:
  template <class T, class Base>
  const T& as(const Base& given, const char* what) const {
    const T* found = dynamic_cast<const T*>(&given);
    if (!found) {
      throw std::invalid_argument("[" + std::string(family_) + "] " + what + " of another model");
    }
    return *found;
  }
  /// Throws std::logic_error if the stage does not hold `what`.
  void require(bool holds, const char* what) const;
  void check_rows(const char* who, PictureSize size, TokenRows rows) const;
  BlockRange own_blocks(const CallTokens& call) const;

  std::vector<int64_t> edge_widths_;  // before each of the stage's blocks, and after the last
};

}  // namespace troupe::models
