#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "models/encoders/encoder_weights.h"
#include "models/safetensors.h"
#include "models/spec/clip_vision_spec.h"

namespace troupe::models {

/// CLIP's vision tower up to the states before its last layer. It reads one block at a time, as the
/// text encoders do. Source: CLIPVisionModel of transformers, hidden_states[-2].
class ClipVisionModel {
 public:
  /// Throws std::runtime_error if a tensor is missing or misshapen. `dtype` is float32, bfloat16 or
  /// float16.
  ClipVisionModel(const spec::ClipVisionSpec& spec, WeightStore weights,
                  at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  /// Same as T5Encoder::let_stay.
  void let_stay() { weights_.stay(); }
  std::uint64_t bytes() const { return weights_.bytes(); }

  /// pixels [B, 3, image_size, image_size] as `clip_pixels` makes them → [B, tokens, D]. `tick` is
  /// called after every block. Throws std::invalid_argument for another shape, std::runtime_error
  /// for a weight that is not finite.
  at::Tensor encode(const at::Tensor& pixels, const std::function<void()>& tick = {}) const;

 private:
  spec::ClipVisionSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  mutable EncoderWeights weights_;
};

/// Returns a picture, uint8 [H, W, 3] on the CPU, as the tower sees it, float32 [1, 3, h, w]:
/// resized bicubically, cut in its middle, and normed by color. Source: CLIPImageProcessor of
/// transformers, by Pillow.
at::Tensor clip_pixels(const at::Tensor& rgb, const spec::ClipPictureSpec& spec);

}  // namespace troupe::models
