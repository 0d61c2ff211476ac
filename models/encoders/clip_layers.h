#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "models/encoders/encoder_weights.h"

namespace troupe::models {

/// Layers that both halves of CLIP have. Weights are found with or without the root that
/// transformers put before their names until version 5.
class ClipLayers {
 public:
  struct Sizes {
    std::int64_t width = 0;
    std::int64_t heads = 1;
    double eps = 1e-5;
    bool quick_gelu = true;
    /// True if a token sees itself and those before it alone.
    bool causal = false;
  };

  /// `weights` must outlive it. `root` ends in a dot.
  ClipLayers(EncoderWeights& weights, std::string_view root, Sizes sizes)
      : weights_(weights), root_(root), sizes_(sizes) {}

  /// Returns the name under which the files have a tensor, given without its root.
  std::string name_of(const std::string& name) const;
  const at::Tensor& weight(const std::string& name) const { return weights_.get(name_of(name)); }
  at::Tensor norm(const at::Tensor& states, const std::string& name) const;
  /// A block of attention and feed-forward; its tensors' names begin with `prefix`.
  at::Tensor block(const at::Tensor& states, const std::string& prefix) const;

 private:
  at::Tensor linear(const at::Tensor& states, const std::string& name) const;
  at::Tensor attend(const at::Tensor& states, const std::string& prefix) const;

  EncoderWeights& weights_;
  std::string root_;
  Sizes sizes_;
};

}  // namespace troupe::models
