#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "models/encoders/clip_layers.h"
#include "models/encoders/encoder_weights.h"
#include "models/safetensors.h"
#include "models/spec/clip_spec.h"

namespace troupe::models {

/// CLIP's output for a prompt; D = hidden_size.
struct ClipStates {
  /// [B, L, D] after the last block and the final norm.
  at::Tensor last;
  /// [B, L, D] some blocks before the end, without the final norm.
  at::Tensor hidden;
  /// [B, D] of the end token in `last`, or its projection [B, projection_dim].
  at::Tensor pooled;
};

/// Token embeddings beside a checkpoint's own: those of ids from `first_id` on, which go before
/// its.
struct LearnedRows {
  std::int64_t first_id = 0;
  at::Tensor rows;  // [n, D] float32 on the CPU, finite; undefined = none
};

/// CLIP's text half. A call reads the embedding rows it needs, then one block at a time, as
/// T5Encoder does. Source: CLIPTextModel and CLIPTextModelWithProjection of transformers.
class ClipTextModel {
 public:
  /// Throws std::runtime_error if a tensor is missing or misshapen. `dtype` is float32, bfloat16 or
  /// float16.
  ClipTextModel(const spec::ClipSpec& spec, WeightStore weights, at::ScalarType dtype = at::kFloat,
                at::Device device = at::kCPU);

  /// Same as T5Encoder::let_stay.
  void let_stay() { weights_.stay(); }
  std::uint64_t bytes() const { return weights_.bytes(); }

  /// Called after every block with the number done.
  using Progress = std::function<void(int done, int total)>;

  /// States for ids [B, L] int64, L ≤ max_position_embeddings; a token sees itself and those before
  /// it, padding included, as in diffusers. `hidden` is taken `before_end` blocks before the end
  /// (1: hidden_states[-2] of transformers, which SDXL and SD3 take). The caller turns gradients
  /// off. Throws std::invalid_argument for an id that the vocabulary lacks or another shape,
  /// std::runtime_error for a weight that is not finite.
  ClipStates encode(const at::Tensor& ids, int before_end = 1, const Progress& progress = {}) const;
  /// Returns the states of each batch by itself; every block is read once for all batches.
  std::vector<ClipStates> encode_each(const std::vector<at::Tensor>& texts, int before_end = 1,
                                      const Progress& progress = {},
                                      const LearnedRows& learned = {}) const;

 private:
  ClipLayers layers() const;
  at::Tensor embed(const at::Tensor& ids, const LearnedRows& learned) const;
  at::Tensor pooled(const at::Tensor& last, const at::Tensor& ids) const;

  spec::ClipSpec spec_;
  mutable EncoderWeights weights_;
};

}  // namespace troupe::models
