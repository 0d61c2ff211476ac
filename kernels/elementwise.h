#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// LayerNorm over the last dimension without weights, then · (1 + scale) + shift, in one pass.
/// x [B, N, D]; scale and shift [B, D], any row stride; returns [B, N, D] in x's dtype.
/// Own code for float32 on CPU and for CUDA, ATen elsewhere. Throws std::invalid_argument for other
/// shapes.
at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps);

/// residual += gate · x, in place. residual and x [B, N, D]; gate [B, D].
void gate_residual_(at::Tensor& residual, const at::Tensor& x, const at::Tensor& gate);

/// The tanh form of GELU, in place. Any shape.
void gelu_tanh_(at::Tensor& x);

}  // namespace troupe::kernels
