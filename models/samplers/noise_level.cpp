#include "models/samplers/noise_level.h"

#include <ATen/ATen.h>

namespace troupe::models {

NoiseLevel noise_level(float sigma, bool flow) {
  const at::Tensor s = at::scalar_tensor(sigma, at::kFloat);
  NoiseLevel level;
  level.alpha = flow ? 1 - s : 1 / (s.pow(2) + 1).pow(0.5);
  level.sigma = flow ? s : s * level.alpha;
  level.lambda = at::log(level.alpha) - at::log(level.sigma);
  return level;
}

}  // namespace troupe::models
