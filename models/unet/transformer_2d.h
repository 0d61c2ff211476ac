#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/unet/layers.h"

namespace troupe::models::unet {

/// Keys and values of the text for one cross attention, [B, L, H, d].
struct TextKeys {
  at::Tensor k, v;
};

/// diffusers' BasicTransformerBlock: self attention, attention to the text, gated feed-forward.
class BasicTransformerBlock {
 public:
  BasicTransformerBlock(const Builder& build, const std::string& name, std::int64_t width,
                        std::int64_t heads, std::int64_t text_width);

  TextKeys keys_of(const at::Tensor& text) const;
  /// Tokens [B, n, width] of each patch, in place.
  void operator()(std::vector<at::Tensor>& tokens, const TextKeys& text, const Call& call,
                  int level) const;

 private:
  struct LayerNorm {
    LayerNorm(const Builder& build, const std::string& name, std::int64_t width);
    at::Tensor operator()(const at::Tensor& x) const;
    at::Tensor weight, bias;
  };

  std::int64_t heads_;
  int index_;
  LayerNorm norm1_, norm2_, norm3_;
  kernels::Linear qkv_, out_;             // self attention
  kernels::Linear q_, k_, v_, text_out_;  // to the text
  kernels::Linear widen_, narrow_;
};

/// diffusers' Transformer2DModel on feature maps.
class Transformer2DModel {
 public:
  Transformer2DModel(const Builder& build, const std::string& name, std::int64_t width,
                     std::int64_t heads, std::int64_t blocks, std::int64_t text_width,
                     bool linear_projection);

  /// Appends the keys of every block.
  void add_keys(const at::Tensor& text, std::vector<TextKeys>& keys) const;
  /// `text` begins with the keys of this one's blocks, and is moved beyond them.
  Features operator()(const Features& x, const TextKeys*& text, const Call& call) const;

 private:
  GroupNorm norm_;
  Pointwise proj_in_;
  std::vector<BasicTransformerBlock> transformer_blocks_;
  Pointwise proj_out_;
};

}  // namespace troupe::models::unet
