#include "models/samplers/multistep_schedules.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "models/samplers/beta_schedule.h"
#include "models/samplers/schedule_checks.h"
#include "models/samplers/table_math.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
namespace {

/// Place of a sample between noise and picture: signal alpha, noise sigma and half the log of their
/// squares' ratio.
struct NoiseLevel {
  float alpha, sigma, lambda;
};

/// Returns the level at a ratio `sigma` of noise to signal with alpha² + sigma² = 1, or, with
/// `flow`, the level at sigma = 1 - alpha.
NoiseLevel noise_level(float sigma, bool flow) {
  NoiseLevel level{};
  level.alpha = flow ? 1 - sigma : 1 / table::sqrt(sigma * sigma + 1);
  level.sigma = flow ? sigma : sigma * level.alpha;
  level.lambda = table::log(level.alpha) - table::log(level.sigma);
  return level;
}

// Number of training steps that are used: those whose log signal-to-noise is not below the clip.
int last_timestep(const spec::SchedulerConfig& config, const std::vector<float>& alphas) {
  std::vector<float> ascending;
  for (auto alpha = alphas.rbegin(); alpha != alphas.rend(); ++alpha)
    ascending.push_back(table::log(table::sqrt(*alpha)) - table::log(table::sqrt(1 - *alpha)));
  const auto clipped = std::lower_bound(ascending.begin(), ascending.end(),
                                        static_cast<float>(config.lambda_min_clipped));
  return config.num_train_timesteps - static_cast<int>(clipped - ascending.begin());
}

int dpm_order(const spec::SchedulerConfig& config, int i, int first, int n) {
  const bool few = config.lower_order_final && n < 15;
  if (i == n - 1 && (config.euler_at_final || few || config.final_sigma_zero)) return 1;
  const int known = std::clamp(i - first + 1, 1, config.solver_order);
  return i == n - 2 && few ? std::min(known, 2) : known;
}

DPMSolverSchedule::Step dpm_step(const spec::SchedulerConfig& config,
                                 const std::vector<float>& sigmas, int i, int order) {
  const bool flow = config.sigma_spacing == spec::SigmaSpacing::kFlow;
  const NoiseLevel t = noise_level(sigmas[i + 1], flow);
  const NoiseLevel s0 = noise_level(sigmas[i], flow);
  const float h = t.lambda - s0.lambda;
  // The two solvers are one formula: the data solver integrates exp(-h) with the signal's scale,
  // the noise solver exp(h) with the noise's, and odd terms change sign.
  const bool plus = config.plus_plus;
  const float scale = plus ? t.alpha : t.sigma;
  // The SDE's step is twice as long, and noise makes up for it.
  const float length = config.stochastic ? 2 * h : h;
  const float gain = table::exp(plus ? -length : length) - 1;

  DPMSolverSchedule::Step s;
  s.order = order;
  s.alpha = s0.alpha;
  s.sigma = s0.sigma;
  s.sample_scale = plus ? t.sigma / s0.sigma : t.alpha / s0.alpha;
  if (config.stochastic) {
    s.sample_scale = t.sigma / s0.sigma * table::exp(-h);
    s.noise = t.sigma * table::sqrt(1 - table::exp(-2 * h));
  }
  s.d0 = -(scale * gain);
  if (s.order < 2) return s;
  const float second_term = plus ? scale * (gain / length + 1) : -(scale * (gain / length - 1));
  const NoiseLevel s1 = noise_level(sigmas[i - 1], flow);
  const float r0 = (s0.lambda - s1.lambda) / h;
  s.inverse_r0 = 1 / r0;
  s.d1 = s.order == 2 && !config.heun ? -(0.5f * (scale * gain)) : second_term;
  if (s.order < 3) return s;
  const NoiseLevel s2 = noise_level(sigmas[i - 2], flow);
  const float r1 = (s1.lambda - s2.lambda) / h;
  s.inverse_r1 = 1 / r1;
  s.weight = r0 / (r0 + r1);
  s.inverse_sum = 1 / (r0 + r1);
  if (config.stochastic) {
    // As diffusers has it: the sign of the exponential's part differs from the others'.
    s.d2 = scale * ((-gain - length) / (length * length) - 0.5f);
  } else {
    const float curve = (plus ? gain + h : gain - h) / (h * h);
    s.d2 = -(scale * (curve - 0.5f));
  }
  return s;
}

}  // namespace

DPMSolverSchedule::DPMSolverSchedule(const spec::SchedulerConfig& config, const SamplerRun& run) {
  const int num_steps = run.num_steps;
  const auto alphas = alphas_cumprod(config, true);
  const std::vector<float> training = training_sigmas(alphas);
  const std::vector<float> log_training = logs(training);
  std::vector<double> sigmas;
  switch (config.sigma_spacing) {
    case spec::SigmaSpacing::kSchedule:
      timesteps = run.settings.timesteps;
      if (timesteps.empty())
        timesteps = spaced_timesteps(config, num_steps, last_timestep(config, alphas), 1, true);
      sigmas = interpolate(timesteps, training);
      break;
    case spec::SigmaSpacing::kKarras:
    case spec::SigmaSpacing::kExponential:
    case spec::SigmaSpacing::kBeta:
      sigmas = respaced_sigmas(config.sigma_spacing, training.back(), training.front(), num_steps);
      break;
    case spec::SigmaSpacing::kFlow:
      for (double alpha : linspace(1, 1.0 / config.num_train_timesteps, num_steps + 1)) {
        const double sigma = 1.0 - alpha;
        sigmas.push_back(config.flow_shift * sigma / (1 + (config.flow_shift - 1) * sigma));
      }
      std::reverse(sigmas.begin(), sigmas.end());
      sigmas.pop_back();
      for (double sigma : sigmas)
        timesteps.push_back(std::trunc(sigma * config.num_train_timesteps));
      break;
    case spec::SigmaSpacing::kLu:
      for (double lambda : linspace(0, 1, num_steps)) {
        const double from = log_training.back();
        sigmas.push_back(std::exp(from + lambda * (log_training.front() - from)));
      }
      break;
  }
  if (timesteps.empty()) {
    timesteps = times_of_sigmas(sigmas, log_training);
    const bool whole = config.sigma_spacing == spec::SigmaSpacing::kKarras ||
                       config.sigma_spacing == spec::SigmaSpacing::kLu;
    if (whole && config.beta_schedule != spec::BetaSchedule::kCosine)
      timesteps = rounded(std::move(timesteps));
    for (double& t : timesteps)
      t = std::trunc(t);
  }
  std::vector<float> levels(sigmas.begin(), sigmas.end());
  levels.push_back(config.final_sigma_zero ? 0.0f : training.front());
  const int n = static_cast<int>(timesteps.size());
  for (int i = 0; i < n; ++i) {
    const Step s = dpm_step(config, levels, i, dpm_order(config, i, run.first, n));
    require_finite(config, run, i,
                   {s.alpha, s.sigma, s.sample_scale, s.d0, s.d1, s.d2, s.inverse_r0, s.inverse_r1,
                    s.weight, s.inverse_sum, s.noise});
    steps.push_back(s);
  }
}

namespace {

int unipc_order(const spec::SchedulerConfig& config, int i, int first, int n) {
  const int order =
      config.lower_order_final ? std::min(config.solver_order, n - i) : config.solver_order;
  return std::min(order, std::clamp(i - first, 0, config.solver_order) + 1);
}

UniPCSchedule::Update unipc_update(const spec::SchedulerConfig& config,
                                   const std::vector<float>& sigmas, int from, int order,
                                   bool corrector) {
  const bool flow = config.sigma_spacing == spec::SigmaSpacing::kFlow;
  const NoiseLevel t = noise_level(sigmas[from + 1], flow);
  const NoiseLevel s0 = noise_level(sigmas[from], flow);
  const float h = t.lambda - s0.lambda;
  UniPCSchedule::Update update;
  for (int k = 1; k < order; ++k)
    update.ratios.push_back((noise_level(sigmas[from - k], flow).lambda - s0.lambda) / h);

  const bool clean = config.plus_plus;
  const float length = clean ? -h : h;
  const float growth = table::expm1(length);
  const float base = config.bh1 ? length : growth;
  // The last ratio is the end of the step, which only a corrector knows.
  if (corrector) update.ratios.push_back(1.0f);
  const int unknown = corrector ? order : order - 1;
  if (unknown == 1) {
    update.shares = {0.5f};
  } else {
    float phi = growth / length - 1;
    double factorial = 1;
    for (int k = 0; k < unknown; ++k) {
      for (const float ratio : update.ratios)
        update.matrix.push_back(k == 0 ? 1 : k == 1 ? ratio : ratio * ratio);
      update.sides.push_back(phi * static_cast<float>(factorial) / base);
      factorial *= k + 2;
      phi = phi / length - static_cast<float>(1 / factorial);
    }
  }
  const float scale = clean ? t.alpha : t.sigma;
  update.sample_scale = clean ? t.sigma / s0.sigma : t.alpha / s0.alpha;
  update.clean_scale = scale * growth;
  update.rest = scale * base;
  return update;
}

/// Refuses an update that divides by nothing; the system of its shares has a solution if no two
/// ratios are the same.
void require_finite_update(const spec::SchedulerConfig& config, const SamplerRun& run,
                           std::size_t i, const UniPCSchedule::Update& update) {
  require_finite(config, run, i, {update.sample_scale, update.clean_scale});
  if (update.ratios.empty()) return;
  require_finite(config, run, i, {update.rest});
  for (const float side : update.sides)
    require_finite(config, run, i, {side});
  for (std::size_t k = 0; k < update.ratios.size(); ++k) {
    const float ratio = update.ratios[k];
    require_finite(config, run, i, {ratio, 1 / ratio});
    for (std::size_t other = 0; other < k; ++other)
      require_finite(config, run, i, {1 / (ratio - update.ratios[other])});
  }
}

}  // namespace

UniPCSchedule::UniPCSchedule(const spec::SchedulerConfig& config, const SamplerRun& run) {
  const int num_steps = run.num_steps;
  const std::vector<float> training = training_sigmas(alphas_cumprod(config, true));
  std::vector<double> sigmas;
  double last = training.front();
  if (config.sigma_spacing == spec::SigmaSpacing::kSchedule) {
    timesteps = spaced_timesteps(config, num_steps, config.num_train_timesteps, 1, true);
    sigmas = interpolate(timesteps, training);
  } else if (config.sigma_spacing == spec::SigmaSpacing::kFlow) {
    constexpr double kBelowOne = 1e-6;
    sigmas = linspace(1, 1.0 / config.num_train_timesteps, num_steps + 1);
    sigmas.pop_back();
    spec::SchedulerConfig shift = config;
    shift.shift = config.flow_shift;
    sigmas = shifted_sigmas(shift, sigmas, 0, false);
    if (std::abs(sigmas.front() - 1) < kBelowOne) sigmas.front() -= kBelowOne;
    for (double sigma : sigmas)
      timesteps.push_back(std::trunc(sigma * config.num_train_timesteps));
    last = sigmas.back();
  } else {
    sigmas = respaced_sigmas(config.sigma_spacing, config.sigma_max.value_or(training.back()),
                             config.sigma_min.value_or(training.front()), num_steps);
    timesteps = times_of_sigmas(sigmas, logs(training));
    if (config.sigma_spacing == spec::SigmaSpacing::kKarras)
      timesteps = rounded(std::move(timesteps));
    for (double& t : timesteps)
      t = std::trunc(t);
    last = sigmas.back();
  }
  std::vector<float> levels(sigmas.begin(), sigmas.end());
  levels.push_back(config.final_sigma_zero ? 0.0f : static_cast<float>(last));

  const int n = static_cast<int>(timesteps.size());
  const auto order_of = [&](int i) { return unipc_order(config, i, run.first, n); };
  for (int i = 0; i < n; ++i) {
    const NoiseLevel start =
        noise_level(levels[i], config.sigma_spacing == spec::SigmaSpacing::kFlow);
    Step s;
    s.alpha = start.alpha;
    s.sigma = start.sigma;
    s.predictor = unipc_update(config, levels, i, order_of(i), false);
    require_finite_update(config, run, i, s.predictor);
    s.corrects = i > run.first && std::ranges::find(config.disable_corrector, i - 1) ==
                                      config.disable_corrector.end();
    if (s.corrects) {
      s.corrector = unipc_update(config, levels, i - 1, order_of(i - 1), true);
      require_finite_update(config, run, i, s.corrector);
    }
    steps.push_back(std::move(s));
  }
}

namespace {

constexpr std::size_t kRounds = 3;

/// Times of the Runge-Kutta calls: the noisiest, then twice half a stride above each that follows
/// and twice that one, the last once.
std::vector<int> times_of_rounds(const std::vector<double>& times, int half_stride) {
  std::vector<int> out = {static_cast<int>(times[0])};
  for (std::size_t k = 1; k <= kRounds; ++k) {
    const int time = static_cast<int>(times[k]);
    out.insert(out.end(), 2, time + half_stride);
    out.insert(out.end(), k < kRounds ? 2 : 1, time);
  }
  return out;
}

PNDMSchedule::Move pndm_move(const spec::SchedulerConfig& config, const std::vector<float>& alphas,
                             int from, int to) {
  const float alpha = alphas[from];
  const float beta = 1 - alpha;
  const float last = config.set_alpha_to_one ? 1.0f : alphas[0];
  const float next = to >= 0 ? alphas.at(to) : last;
  PNDMSchedule::Move move;
  move.root_alpha = std::sqrt(alpha);
  move.root_beta = std::sqrt(beta);
  move.sample_scale = std::sqrt(next / alpha);
  move.change = next - alpha;
  move.divisor = alpha * std::sqrt(1 - next) + std::sqrt(alpha * beta * next);
  return move;
}

}  // namespace

PNDMSchedule::PNDMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run) {
  const int trained = config.num_train_timesteps;
  const int stride = trained / run.num_steps;
  const auto times = spaced_timesteps(config, run.num_steps, trained, 0, true);
  if (config.skip_prk_steps) {
    timesteps = times;
    if (times.size() > 1) timesteps.insert(timesteps.begin() + 1, times[1]);
  } else {
    if (times.size() <= kRounds) {
      throw std::invalid_argument(
          fmt::format("[sampler] steps is {}, but pndm begins with rounds over four of them "
                      "(skip_prk_steps is not true in {}): ask for 4 or more",
                      run.num_steps, config.file));
    }
    round_times = times_of_rounds(times, stride / 2);
    timesteps.assign(round_times.begin(), round_times.end());
    timesteps.insert(timesteps.end(), times.begin() + kRounds, times.end());
  }
  const auto alphas = alphas_cumprod(config, false);
  for (std::size_t i = 0; i < timesteps.size(); ++i) {
    const int time = static_cast<int>(timesteps[i]);
    const int call = static_cast<int>(i) - run.first;
    if (call < 0) {
      moves.emplace_back();
      noises.emplace_back();
      continue;
    }
    int from = time;
    int to = time - stride;
    if (call < static_cast<int>(round_times.size())) {
      from = round_times[call / kCallsOfRound * kCallsOfRound];
      to = call % 2 == 0 ? time - stride / 2 : time;
    } else if (call == 1) {  // the first step again, from its start
      from = time + stride;
      to = time;
    }
    for (const int visited : {time, from}) {
      if (visited >= 0 && visited < trained) continue;
      throw std::invalid_argument(
          fmt::format("[sampler] steps is {}: with steps_offset = {} in {} pndm visits time {}, "
                      "and the model was trained with times below {}: ask for another number",
                      run.num_steps, config.steps_offset, config.file, visited, trained));
    }
    moves.push_back(pndm_move(config, alphas, from, to));
    noises.push_back({std::sqrt(alphas[time]), std::sqrt(1 - alphas[time])});
    const auto& move = moves.back();
    require_finite(config, run, i, {move.sample_scale, 1 / move.divisor});
  }
}

}  // namespace troupe::models
