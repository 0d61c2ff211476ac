#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "kernels/window_conv.h"
#include "models/unet/unet_port.h"
#include "models/unpack_weights.h"
#include "models/vae/layers.h"

namespace troupe::models::unet {

/// Numbers the layers that look beyond their patch, as they are made.
struct SiteCounter {
  int convs = 0;
  int norms = 0;
  int attentions = 0;
};

/// Source of the layers' weights and settings.
struct Builder {
  const vae::Loader& load;
  SiteCounter& sites;
  std::int64_t norm_groups;
  double norm_eps;
  /// Way in which products of tokens keep their weights, and the number of bytes that this has
  /// saved so far.
  kernels::WeightType products;
  std::int64_t& saved;
  /// Returns the matrix of a product of tokens that is kept as it is stored, if one can be.
  std::function<std::optional<PackedMatrix>(const std::string& name)> packed;
};

/// A product of tokens with the rows of the tensors `names`, one behind the other; weight their
/// values [out, in], bias [out] or undefined.
kernels::Linear product_of(const Builder& build, const std::vector<std::string>& names,
                           const at::Tensor& weight, const at::Tensor& bias = {});

/// The product of tokens `name`, [out, in].
kernels::Linear product_of(const Builder& build, const std::string& name, std::int64_t in,
                           std::int64_t out, bool bias = true);

/// One call of the model.
struct Call {
  UNetPort& port;
  std::vector<std::int64_t> widths;  ///< width of the feature map at each level
};

/// A convolution of side 3: at one level, to the next (stride 2), or to the one before (of the map
/// doubled by repetition, cut to the width and height there).
class Conv2d {
 public:
  enum class Way { level, down, up };
  /// `quantized`: it keeps its weight as products of tokens do.
  Conv2d(const Builder& build, const std::string& name, std::int64_t in, std::int64_t out,
         Way way = Way::level, bool quantized = true);

  Features operator()(const Features& x, const Call& call) const;

 private:
  at::Tensor convolve(const at::Tensor& x, RowRun own, const Halo& halo, RowRun out,
                      const Call& call, int level) const;

  std::int64_t out_;
  at::Tensor weight_, bias_;  // undefined where it is a product of windows
  std::optional<kernels::WindowConv> windows_;
  Way way_;
  int index_;
};

/// A product of each position's channels: a linear layer or a convolution of side 1, by the shape
/// that the checkpoint has.
class Pointwise {
 public:
  Pointwise() = default;
  /// `quantized`: it keeps its weight as products of tokens do.
  Pointwise(const Builder& build, const std::string& name, std::int64_t in, std::int64_t out,
            bool convolution, bool quantized);
  /// [B, tokens, in] to [B, tokens, out].
  at::Tensor operator()(const at::Tensor& tokens) const { return linear_(tokens); }

 private:
  kernels::Linear linear_;
};

class GroupNorm {
 public:
  GroupNorm(const Builder& build, const std::string& name, std::int64_t channels, double epsilon);
  Features operator()(const Features& x, const Call& call, bool silu) const;

 private:
  at::Tensor weight_, bias_;
  std::int64_t groups_;
  double epsilon_;
  int index_;
};

/// diffusers' ResnetBlock2D.
class ResnetBlock2D {
 public:
  ResnetBlock2D(const Builder& build, const std::string& name, std::int64_t in, std::int64_t out,
                std::int64_t time_width);
  /// `time` [B, time_width], after SiLU.
  Features operator()(const Features& x, const at::Tensor& time, const Call& call) const;

 private:
  GroupNorm norm1_;
  Conv2d conv1_;
  kernels::Linear time_emb_proj_;
  GroupNorm norm2_;
  Conv2d conv2_;
  std::optional<Pointwise> conv_shortcut_;
};

/// Positions [B, C, n, w] as tokens [B, n · w, C], and back.
at::Tensor tokens_of(const at::Tensor& x);
at::Tensor rows_of(const at::Tensor& tokens, std::int64_t rows, std::int64_t width);

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
