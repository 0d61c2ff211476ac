#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// Norms and turns queries and keys before attention, in place and in one pass: x [B, n, H, d], any
/// strides with a contiguous last dimension. First x / sqrt(mean x² + eps) · weight over d; then
/// pairs (2i, 2i + 1) turned by the angle whose cosine and sine stand in [n, d / 2]. weight [d], or
/// undefined for no norm; cosine and sine both, or undefined for no turn. float32, bfloat16 and
/// float16, computed in float32. Throws std::invalid_argument for other shapes.
void norm_rotate(at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                 const at::Tensor& sine, double eps);

}  // namespace troupe::kernels
