#pragma once
#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Decoded pictures [B, C, H, W] around [-1, 1], any floating dtype and device, to uint8 [B, H, W,
/// C] on the CPU: halved and shifted to [0, 1], clamped, times 255, ties to even. Throws
/// std::invalid_argument for another number of dimensions.
at::Tensor to_uint8(const at::Tensor& decoded);

}  // namespace troupe::models
