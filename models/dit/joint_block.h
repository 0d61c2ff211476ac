#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/weight_loader.h"
#include "models/spec/sd3_spec.h"

namespace troupe::models {

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

/// Text tokens and picture tokens, each with weights of their own, in one attention: the block of
/// SD3 and Qwen-Image, and the two-stream block of FLUX and FLUX.2. Source: JointTransformerBlock,
/// FluxTransformerBlock, QwenImageTransformerBlock, Flux2TransformerBlock.
class JointBlock {
 public:
  /// Shifts, scales and gates, [B, n, D] each. `reference`: those of pictures to edit, where these
  /// have others than the picture that is made; else undefined.
  struct Modulation {
    at::Tensor picture, text, reference = {};
  };

  static std::vector<at::Tensor> tensors_of(const std::vector<Modulation>& all);

  /// `slot`: slot of the attention over everything; that of the attention over the picture alone is
  /// the next one.
  JointBlock(const spec::JointBlockShape& shape, const std::string& prefix, int slot,
             WeightShard shard, const WeightLoader& weights);

  /// embedded [B, D] after SiLU. The block has its own modulation.
  Modulation modulation(const at::Tensor& embedded) const;
  /// Returns the picture's part of it alone.
  at::Tensor picture_modulation(const at::Tensor& embedded) const;
  /// text [B, t, D] and picture [B, n, D], contiguous, changed in place; the last block leaves the
  /// text as it is. `turns`: of the picture's tokens; these and the text's may be empty. The first
  /// `references` of the picture's tokens are of pictures to edit.
  void run(at::Tensor& text, at::Tensor& picture, const Modulation& modulation,
           const RotaryAngles& turns, AttentionPort& attention, TensorParallelPort& sums,
           const RotaryAngles& text_turns = {}, int64_t references = 0) const;
  /// Returns the picture's input of the attention: `picture` normed, scaled and shifted.
  at::Tensor modulated(const at::Tensor& picture, const Modulation& modulation) const;
  /// Does the same as kernels::Linear::list_tensors.
  void list_tensors(std::vector<at::Tensor*>& all);

 private:
  struct Attention {
    kernels::Linear qkv, out;
    at::Tensor norm_q, norm_k;  // undefined without norms
    void list_tensors(std::vector<at::Tensor*>& all);
  };
  struct Forward {
    kernels::Linear widen, narrow;
  };
  Attention attention_of(const WeightLoader& weights, const std::string& name,
                         const char* const names[3], const std::string& out,
                         const char* norms) const;
  Forward forward_of(const WeightLoader& weights, const std::string& name) const;
  at::Tensor widened(const Forward& forward, const at::Tensor& normal) const;
  at::Tensor qkv_of(const Attention& of, const at::Tensor& normal, const RotaryAngles& turns) const;
  at::Tensor joined(const at::Tensor& heads) const;
  /// Returns the picture's tokens normed, scaled and shifted, the first `references` of them by
  /// factors of their own where there are some.
  at::Tensor normed(const at::Tensor& picture, const Modulation& modulation, int scale, int shift,
                    int64_t references) const;
  /// Adds a product to the picture's tokens, gated in the same way.
  void add_gated(at::Tensor& picture, const kernels::Linear& product, const at::Tensor& x,
                 const Modulation& modulation, int gate, int64_t references,
                 TensorParallelPort& sums) const;

  spec::JointBlockShape shape_;
  int slot_;
  WeightShard shard_;
  int64_t heads_;  // of this shard
  kernels::Linear norm_, norm_text_;
  Attention picture_, text_, second_;
  Forward forward_, forward_text_;
};

}  // namespace troupe::models
