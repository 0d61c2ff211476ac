#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace troupe::kernels {

/// Moves a run of rows' keys and values one version back and puts fresh ones in front, in one pass:
/// versions[i] ← versions[i − 1], versions[0] ← fresh.
/// versions: 1 to 3 contiguous tensors [n, B, 2, H, d], newest first; fresh [n, B, 2, H, d] of
/// their dtype, any strides. `known`: how many versions hold values before the call; what the
/// others hold is never read. sums [B, 2, 2] float64, contiguous (two versions at least): where
/// known >= 2, the numerator Σ (x − x1)(x1 − x2) and the denominator Σ (x1 − x2)² are added to the
/// last dimension for every batch item and for K and V, x being fresh, x1 versions[0] and x2
/// versions[1] as they were. On CPU the result does not depend on the number of threads. float32,
/// bfloat16 and float16. Throws std::invalid_argument where shapes, dtypes or layouts are others.
void kv_push(const std::vector<at::Tensor>& versions, const at::Tensor& fresh, int known,
             const std::optional<at::Tensor>& sums = std::nullopt);

/// Returns the factors of the extrapolation from x1 along x1 − x2: [B, 2] float32 from sums
/// [B, 2, 2] of kv_push, clamp(numerator / denominator, 0, 1), and 0 where the denominator is 0 or
/// either is not finite.
at::Tensor extrapolation_factors(const at::Tensor& sums);

}  // namespace troupe::kernels
