#include "models/samplers/timestep_spacing.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/format.h"
#include "models/samplers/table_math.h"

namespace troupe::models {

std::vector<double> linspace(double from, double to, int n) {
  std::vector<double> out(n);
  const double step = n > 1 ? (to - from) / (n - 1) : 0.0;
  for (int i = 0; i < n; ++i) {
    out[i] = i * step + from;
  }
  if (n > 1) out.back() = to;
  return out;
}

std::vector<double> arange(double from, double to, double step) {
  const double length = std::ceil((to - from) / step);
  std::vector<double> out(length > 0 ? static_cast<size_t>(length) : 0);
  const double delta = (from + step) - from;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = from + static_cast<double>(i) * delta;
  }
  return out;
}

std::vector<double> rounded(std::vector<double> values) {
  for (double& v : values) {
    v = std::nearbyint(v);
  }
  return values;
}

std::vector<double> interpolate(const std::vector<double>& at, const std::vector<float>& values) {
  const auto last = static_cast<double>(values.size() - 1);
  std::vector<double> out;
  for (double x : at) {
    if (x <= 0) {
      out.push_back(values.front());
    } else if (x >= last) {
      out.push_back(values.back());
    } else {
      const auto j = static_cast<size_t>(x);
      const double slope = static_cast<double>(values[j + 1]) - static_cast<double>(values[j]);
      out.push_back(slope * (x - static_cast<double>(j)) + static_cast<double>(values[j]));
    }
  }
  return out;
}

std::vector<double> spaced_timesteps(const spec::SchedulerConfig& config, int steps, int last,
                                     int extra, bool whole) {
  std::vector<double> times;
  switch (config.timestep_spacing) {
    case spec::TimestepSpacing::kTrailing: {
      const double ratio = static_cast<double>(config.num_train_timesteps) / steps;
      times = rounded(arange(last, 0, -ratio));
      for (double& t : times) {
        t -= 1;
      }
      if (!times.empty() && times.back() < 0) {
        throw std::invalid_argument(
            fmt::format("[sampler] steps is {}: with timestep_spacing = trailing in {} they end at "
                        "time {}, and the model was trained from time 0 on: ask for another number",
                        steps, config.file, times.back()));
      }
      return times;
    }
    case spec::TimestepSpacing::kLinspace:
      times = linspace(0, last - 1, steps + extra);
      if (whole) times = rounded(std::move(times));
      break;
    case spec::TimestepSpacing::kLeading: {
      const int ratio = last / (steps + extra);
      for (int i = 0; i < steps + extra; ++i) {
        times.push_back(static_cast<double>(i) * ratio + config.steps_offset);
      }
      break;
    }
  }
  std::reverse(times.begin(), times.end());
  times.resize(steps);
  return times;
}

namespace {

std::vector<double> karras_sigmas(double max, double min, int n) {
  constexpr double kRho = 7.0;
  const double from = std::pow(max, 1 / kRho);
  const double to = std::pow(min, 1 / kRho);
  std::vector<double> out = linspace(0, 1, n);
  for (double& v : out) {
    v = std::pow(from + v * (to - from), kRho);
  }
  return out;
}

std::vector<double> exponential_sigmas(double max, double min, int n) {
  std::vector<double> out = linspace(std::log(max), std::log(min), n);
  for (double& v : out) {
    v = std::exp(v);
  }
  return out;
}

constexpr double kBetaShape = 0.6;

// The regularised incomplete beta function of equal shapes at 0 < x ≤ 1/2, by its continued
// fraction.
double beta_below(double x) {
  constexpr double a = kBetaShape;
  constexpr double kTiny = 1e-300;
  double c = 1;
  double d = 1 - 2 * a * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double fraction = d;
  for (int m = 1; m < 300; ++m) {
    const double even = m * (a - m) * x / ((a - 1 + 2 * m) * (a + 2 * m));
    const double odd = -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 1 + 2 * m));
    double change = 1;
    for (const double term : {even, odd}) {
      d = 1 / (1 + term * d);
      c = 1 + term / c;
      change = d * c;
      fraction *= change;
    }
    if (std::abs(change - 1) < 1e-16) break;
  }
  const double log_beta = 2 * std::lgamma(a) - std::lgamma(2 * a);
  return std::exp(a * std::log(x) + a * std::log1p(-x) - log_beta) * fraction / a;
}

double beta_quantile(double p) {
  if (p <= 0) return 0;
  if (p > 0.5) return 1 - beta_quantile(1 - p);
  double low = 0;
  double high = 0.5;
  for (int i = 0; i < 120 && low < high; ++i) {
    const double middle = (low + high) / 2;
    if (middle == low || middle == high) break;
    (beta_below(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<double> beta_sigmas(double max, double min, int n) {
  std::vector<double> out;
  for (const double time : linspace(0, 1, n))
    out.push_back(min + beta_quantile(1 - time) * (max - min));
  return out;
}

}  // namespace

std::vector<double> respaced_sigmas(spec::SigmaSpacing spacing, double max, double min, int n) {
  switch (spacing) {
    case spec::SigmaSpacing::kKarras:
      return karras_sigmas(max, min, n);
    case spec::SigmaSpacing::kExponential:
      return exponential_sigmas(max, min, n);
    case spec::SigmaSpacing::kBeta:
      return beta_sigmas(max, min, n);
    default:
      throw std::invalid_argument("[respaced_sigmas] not a spacing between two noise levels");
  }
}

std::vector<float> logs(const std::vector<float>& values) {
  std::vector<float> out;
  for (float v : values) {
    out.push_back(table::log(v));
  }
  return out;
}

namespace {

template <class T>
double time_of(T sigma, const std::vector<float>& log_sigmas) {
  const T log_sigma = std::log(std::max(sigma, static_cast<T>(1e-10)));
  if (log_sigmas.size() < 2) return 0;
  size_t low = 0;
  for (size_t i = 0; i < log_sigmas.size(); ++i) {
    if (log_sigma - static_cast<T>(log_sigmas[i]) >= 0) low = i;
  }
  low = std::min(low, log_sigmas.size() - 2);
  const float a = log_sigmas[low];
  const float b = log_sigmas[low + 1];
  const T w = std::clamp((static_cast<T>(a) - log_sigma) / static_cast<T>(a - b), T{0}, T{1});
  return static_cast<double>(T{1} - w) * static_cast<double>(low) +
         static_cast<double>(w) * static_cast<double>(low + 1);
}

}  // namespace

double time_of_sigma(double sigma, const std::vector<float>& log_sigmas) {
  return time_of(sigma, log_sigmas);
}

double time_of_sigma(float sigma, const std::vector<float>& log_sigmas) {
  return time_of(sigma, log_sigmas);
}

std::vector<double> times_of_sigmas(const std::vector<double>& sigmas,
                                    const std::vector<float>& log_sigmas) {
  std::vector<double> out;
  for (double sigma : sigmas) {
    out.push_back(time_of_sigma(sigma, log_sigmas));
  }
  return out;
}

namespace {

// Linear in the number of tokens.
double shift_of_size(const spec::SchedulerConfig& config, std::int64_t tokens) {
  const double slope = (config.max_shift - config.base_shift) /
                       (config.max_image_seq_len - config.base_image_seq_len);
  return static_cast<double>(tokens) * slope +
         (config.base_shift - slope * config.base_image_seq_len);
}

// Source: compute_empirical_mu of FLUX.2's pipelines, which lays a line through what was found best
// for 10 steps and for 200, each linear in the number of tokens; beyond 4300 tokens, only the
// latter counts.
double shift_of_size_and_steps(std::int64_t tokens, int steps) {
  constexpr std::int64_t kManyTokens = 4300;
  const auto count = static_cast<double>(tokens);
  const double at_200 = 0.00016927 * count + 0.45666666;
  if (tokens > kManyTokens) return at_200;
  const double at_10 = 8.73809524e-05 * count + 1.89833333;
  const double slope = (at_200 - at_10) / 190;
  return slope * steps + (at_200 - 200 * slope);
}

template <class T>
std::vector<double> shifted(const spec::SchedulerConfig& config, const std::vector<double>& sigmas,
                            double mu) {
  const T one = 1;
  const T factor = config.use_dynamic_shifting
                       ? static_cast<T>(config.linear_time_shift ? mu : std::exp(mu))
                       : static_cast<T>(config.shift);
  std::vector<T> out;
  for (const double value : sigmas) {
    const T s = static_cast<T>(value);
    out.push_back(config.use_dynamic_shifting ? factor / (factor + (one / s - one))
                                              : factor * s / (one + (factor - one) * s));
  }
  if (config.shift_terminal && *config.shift_terminal != 0) {
    const T scale = (one - out.back()) / static_cast<T>(1 - *config.shift_terminal);
    for (T& s : out)
      s = one - (one - s) / scale;
  }
  return {out.begin(), out.end()};
}

}  // namespace

double dynamic_shift(const spec::SchedulerConfig& config, const SamplerRun& run) {
  if (!config.use_dynamic_shifting) return 0;
  if (run.fixed_shift) return *run.fixed_shift;
  if (run.image_tokens < 1) {
    throw std::invalid_argument("[sampler] " + config.file +
                                ": use_dynamic_shifting = true needs the picture's size");
  }
  return run.shifts_by_steps ? shift_of_size_and_steps(run.image_tokens, run.num_steps)
                             : shift_of_size(config, run.image_tokens);
}

std::vector<double> shifted_sigmas(const spec::SchedulerConfig& config,
                                   const std::vector<double>& sigmas, double mu, bool in_float32) {
  return in_float32 ? shifted<float>(config, sigmas, mu) : shifted<double>(config, sigmas, mu);
}

}  // namespace troupe::models
