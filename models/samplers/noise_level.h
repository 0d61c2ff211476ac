#pragma once
#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Where on its way a sample is: signal alpha, noise sigma and half the log of their squares'
/// ratio, float32 scalars.
struct NoiseLevel {
  at::Tensor alpha, sigma, lambda;
};

/// Of a ratio of noise to signal with alpha² + sigma² = 1, or, with `flow`, of sigma = 1 - alpha.
NoiseLevel noise_level(float sigma, bool flow);

}  // namespace troupe::models
