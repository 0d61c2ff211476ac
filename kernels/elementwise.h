#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// LayerNorm over the last dimension without weights, then · (1 + scale) + shift, in one pass.
/// x [B, N, D]; scale and shift [B, D], any row stride; returns [B, N, D] in x's dtype.
/// Own code for float32 on CPU and for CUDA, ATen elsewhere. Throws std::invalid_argument for other
/// shapes.
at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps);

/// residual += y + bias, in place. residual and y [..., D]; bias [D] or undefined.
void add(at::Tensor& residual, const at::Tensor& y, const at::Tensor& bias = {});

/// residual += gate · (y + bias), in place. residual and y [B, N, D]; gate [B, D]; bias [D] or
/// undefined. Linear::add_gated_to does the same in the tail of a product; this is for products
/// that are summed over processes first.
void add_gated(at::Tensor& residual, const at::Tensor& y, const at::Tensor& gate,
               const at::Tensor& bias = {});

/// The tanh form of GELU, in place. Any shape.
void gelu_tanh_(at::Tensor& x);

/// Norms and turns queries and keys before attention, in place and in one pass: x [B, n, H, d], any
/// strides with a contiguous last dimension. First x / sqrt(mean x² + eps) · weight over d; then
/// pairs (2i, 2i + 1) turned by the angle whose cosine and sine stand in [n, d / 2]. weight [d], or
/// undefined for no norm; cosine and sine both, or undefined for no turn. float32, bfloat16 and
/// float16, computed in float32. Throws std::invalid_argument for other shapes.
void norm_rotate(at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                 const at::Tensor& sine, double eps);

}  // namespace troupe::kernels
