#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// softmax(scale · q · kᵀ + bias) · v for every head.
/// q [B, Nq, H, d]; k and v [B, Nk, H, d]; strided views are taken as they are as long as the last
/// dimension is contiguous. key_bias [B, Nk] is added to the scores of a key, for all queries and
/// heads. Returns [B, Nq, H, d], contiguous, in q's dtype. Throws std::invalid_argument where
/// shapes disagree. float32 on CPU runs on own blocked code where the CPU has AVX2, AVX-512 or
/// NEON; everything else on ATen's scaled_dot_product_attention.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                     const std::optional<at::Tensor>& key_bias = std::nullopt);

}  // namespace troupe::kernels
