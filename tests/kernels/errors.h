#pragma once
#include <ATen/ATen.h>

#include <cmath>

namespace troupe::kernels::testing {

/// Largest difference over the largest value.
inline double error(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return got.sizes() == want.sizes() ? 0 : INFINITY;
  return ((got.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

}  // namespace troupe::kernels::testing
