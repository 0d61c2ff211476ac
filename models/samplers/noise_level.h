#pragma once
#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Place of a sample between noise and picture: signal alpha, noise sigma and half the log of their
/// squares' ratio, float32 scalars.
struct NoiseLevel {
  at::Tensor alpha, sigma, lambda;
};

/// Returns the level at a ratio `sigma` of noise to signal with alpha² + sigma² = 1, or, with
/// `flow`, the level at sigma = 1 - alpha.
NoiseLevel noise_level(float sigma, bool flow);

}  // namespace troupe::models
