#pragma once

#include <ATen/ATen.h>

#include <vector>

/// Nearness of a kernel to its twin, which computes the same in float32 or float64.
namespace troupe::testing {

inline const std::vector<at::ScalarType> kKernelTypes = {at::kFloat, at::kBFloat16, at::kHalf};

/// Distance in parts of the largest value, NaN where there is one.
inline double apart(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor wide = want.to(at::kDouble), difference = got.cpu().to(at::kDouble) - wide;
  return (difference.abs().max() / wide.abs().max().clamp_min(1e-30)).item<double>();
}

inline double bound(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : type == at::kHalf ? 2e-3 : 1.6e-2;
}

/// Values that `type` can hold, in float32 on the CPU.
inline at::Tensor exact(at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape).to(type).to(at::kFloat);
}

/// newest + alpha[:, side] · (newest − older) in float64, of [B, n, H, d].
inline at::Tensor extrapolated(const at::Tensor& newest, const at::Tensor& older,
                               const at::Tensor& alpha, int side) {
  const at::Tensor x = newest.to(at::kDouble);
  const at::Tensor factor = alpha.select(1, side).to(at::kDouble).view({-1, 1, 1, 1});
  return x + factor * (x - older.to(at::kDouble));
}

}  // namespace troupe::testing
