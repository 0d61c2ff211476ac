#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/encoders/encoder_weights.h"
#include "models/spec/qwen_vision_spec.h"

namespace troupe::models {

/// A picture as a vision tower takes it.
struct VisionPatches {
  /// Normed values, float32 [rows · columns, values]: the patches of a token one behind the other,
  /// tokens row by row.
  at::Tensor values;
  /// Patches of the grid's sides.
  std::int64_t rows = 0, columns = 0;
};

/// Returns the patches of a picture, uint8 [H, W, 3] on the CPU: it is brought to whole tokens by
/// Pillow's bicubic filter, and normed. Source: Qwen2VLImageProcessor of transformers.
VisionPatches vision_patches(const spec::QwenVisionSpec& spec, const at::Tensor& rgb);

/// The vision tower of a Qwen2.5-VL: patches that attend within windows, in some blocks to the
/// whole picture, and are merged to tokens of the language model. Source:
/// Qwen2_5_VisionTransformerPretrainedModel of transformers.
class QwenVisionTower {
 public:
  /// Computes with `weights`, which outlive it, in their type `dtype`.
  QwenVisionTower(const spec::QwenVisionSpec& spec, EncoderWeights& weights, at::ScalarType dtype,
                  at::Device device)
      : spec_(spec), weights_(weights), dtype_(dtype), device_(device) {}

  /// Returns the tokens [n, out_hidden_size] of each picture; every block is read once for all
  /// pictures, and `on_block` called after it.
  std::vector<at::Tensor> encode_each(const std::vector<VisionPatches>& pictures,
                                      const std::function<void()>& on_block) const;

 private:
  /// Windows of the same number of patches, one behind the other.
  struct Windows {
    std::int64_t count = 0, patches = 0;
  };
  /// Tensors that a picture's size decides.
  struct Grid {
    at::Tensor order;         // [tokens]: the place of each token where windows lie together
    at::Tensor cosine, sine;  // [patches, d] in that order
    std::vector<Windows> windows;
  };
  Grid grid_of(std::int64_t rows, std::int64_t columns) const;
  at::Tensor norm(const at::Tensor& states, const std::string& name) const;
  at::Tensor linear(const at::Tensor& states, const std::string& name) const;
  at::Tensor attend(const at::Tensor& states, const Grid& grid, bool whole,
                    const std::string& prefix) const;
  at::Tensor feed_forward(const at::Tensor& states, const std::string& prefix) const;
  at::Tensor merge(const at::Tensor& states) const;

  spec::QwenVisionSpec spec_;
  EncoderWeights& weights_;
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace troupe::models
