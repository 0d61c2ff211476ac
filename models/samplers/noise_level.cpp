#include "models/samplers/noise_level.h"

#include <ATen/ATen.h>

#include "models/samplers/table_math.h"

namespace troupe::models {

NoiseLevel noise_level(float sigma, bool flow) {
  const at::Tensor s = at::scalar_tensor(sigma, at::kFloat);
  NoiseLevel level;
  level.alpha = flow ? 1 - s : 1 / table::sqrt(s.pow(2) + 1);
  level.sigma = flow ? s : s * level.alpha;
  level.lambda = table::log(level.alpha) - table::log(level.sigma);
  return level;
}

}  // namespace troupe::models
