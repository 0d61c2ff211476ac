#include "models/samplers/beta_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/samplers/table_math.h"

namespace troupe::models {
namespace {

std::vector<float> cosine_betas(int n) {
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
  return betas;
}

std::vector<float> betas_of(const spec::SchedulerConfig& c) {
  const int n = c.num_train_timesteps;
  if (!c.trained_betas.empty()) return c.trained_betas;
  if (c.beta_schedule == spec::BetaSchedule::kLinear)
    return table::linspace(c.beta_start, c.beta_end, n);
  if (c.beta_schedule == spec::BetaSchedule::kScaledLinear) {
    auto betas = table::linspace(std::sqrt(c.beta_start), std::sqrt(c.beta_end), n);
    for (float& beta : betas)
      beta *= beta;
    return betas;
  }
  return cosine_betas(n);
}

// Products are kept in double and rounded one by one, as ATen's cumprod does.
std::vector<float> products_of_rest(const std::vector<float>& betas) {
  std::vector<float> out;
  double product = 1;
  for (const float beta : betas) {
    product *= 1.0f - beta;
    out.push_back(static_cast<float>(product));
  }
  return out;
}

// Shifts and scales sqrt(alpha bar) so that it ends at 0 and keeps its first value
// ("Common diffusion noise schedules and sample steps are flawed", arXiv 2305.08891).
std::vector<float> zero_terminal_snr(const std::vector<float>& betas) {
  std::vector<float> bars = products_of_rest(betas);
  for (float& bar : bars)
    bar = table::sqrt(bar);
  const float first = bars.front(), last = bars.back();
  for (float& bar : bars) {
    const float root = (bar - last) * (first / (first - last));
    bar = root * root;
  }
  std::vector<float> out = {1.0f - bars.front()};
  for (std::size_t i = 1; i < bars.size(); ++i)
    out.push_back(1.0f - bars[i] / bars[i - 1]);
  return out;
}

}  // namespace

std::vector<float> alphas_cumprod(const spec::SchedulerConfig& config, bool keep_last_positive) {
  auto betas = betas_of(config);
  if (config.rescale_betas_zero_snr) betas = zero_terminal_snr(betas);
  auto product = products_of_rest(betas);
  if (config.rescale_betas_zero_snr && keep_last_positive) product.back() = std::ldexp(1.0f, -24);
  return product;
}

std::vector<float> training_sigmas(const std::vector<float>& alphas_cumprod) {
  std::vector<float> out;
  for (const float alpha : alphas_cumprod)
    out.push_back(table::sqrt((1.0f - alpha) / alpha));
  return out;
}

}  // namespace troupe::models
