#include "models/samplers/beta_schedule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "models/samplers/table_math.h"

namespace troupe::models {
namespace {

at::Tensor cosine_betas(int n) {
  const auto alpha_bar = [](double t) {
    const double c = std::cos((t + 0.008) / 1.008 * std::numbers::pi / 2);
    return c * c;
  };
  std::vector<float> betas(n);
  for (int i = 0; i < n; ++i) {
    const double from = alpha_bar(static_cast<double>(i) / n);
    const double to = alpha_bar(static_cast<double>(i + 1) / n);
    betas[i] = static_cast<float>(std::min(1 - to / from, 0.999));
  }
  return at::tensor(betas);
}

at::Tensor betas_of(const spec::SchedulerConfig& c) {
  const int n = c.num_train_timesteps;
  if (!c.trained_betas.empty()) return at::tensor(c.trained_betas);
  if (c.beta_schedule == spec::BetaSchedule::kLinear)
    return table::linspace(c.beta_start, c.beta_end, n);
  if (c.beta_schedule == spec::BetaSchedule::kScaledLinear) {
    return table::linspace(std::sqrt(c.beta_start), std::sqrt(c.beta_end), n).pow(2);
  }
  return cosine_betas(n);
}

// Shifts and scales sqrt(alpha bar) so that it ends at 0 and keeps its first value
// ("Common diffusion noise schedules and sample steps are flawed", arXiv 2305.08891).
at::Tensor zero_terminal_snr(const at::Tensor& betas) {
  at::Tensor root = table::sqrt(at::cumprod(1.0 - betas, 0));
  const at::Tensor first = root[0].clone();
  const at::Tensor last = root[-1].clone();
  root = (root - last) * (first / (first - last));
  const at::Tensor bar = root.pow(2);
  const at::Tensor ratio = bar.slice(0, 1) / bar.slice(0, 0, -1);
  return 1 - at::cat({bar.slice(0, 0, 1), ratio});
}

}  // namespace

at::Tensor alphas_cumprod(const spec::SchedulerConfig& config, bool keep_last_positive) {
  at::Tensor betas = betas_of(config);
  if (config.rescale_betas_zero_snr) betas = zero_terminal_snr(betas);
  at::Tensor product = at::cumprod(1.0 - betas, 0);
  if (config.rescale_betas_zero_snr && keep_last_positive) product[-1].fill_(std::ldexp(1.0, -24));
  return product;
}

at::Tensor training_sigmas(const at::Tensor& alphas_cumprod) {
  return table::sqrt((1 - alphas_cumprod) / alphas_cumprod);
}

}  // namespace troupe::models
