#pragma once

#include <ATen/ATen.h>

namespace troupe::models {

/// Turns channel i of a head with channel i + d/2. x [..., L, d]; cosines and sines [L, d].
inline at::Tensor turned_halves(const at::Tensor& x, const at::Tensor& cosine,
                                const at::Tensor& sine) {
  const auto halves = x.chunk(2, -1);
  return x * cosine + at::cat({-halves[1], halves[0]}, -1) * sine;
}

}  // namespace troupe::models
