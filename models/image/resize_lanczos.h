#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::models {

/// A picture, uint8 [H, W, 3] on the CPU, in another size by a Lanczos filter of three lobes, to
/// the bit as Pillow 13's `resize` does it: one axis, then the other, in fixed point of 22 bits,
/// rounded to 8 bits in between. An axis that keeps its size is left alone.
at::Tensor resize_lanczos(const at::Tensor& rgb, std::int64_t height, std::int64_t width);

/// The same as a model takes it: float32 [1, 3, height, width] in [-1, 1].
at::Tensor to_model_range(const at::Tensor& rgb);

}  // namespace troupe::models
