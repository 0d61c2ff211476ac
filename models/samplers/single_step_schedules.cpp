#include "models/samplers/single_step_schedules.h"

#include <algorithm>
#include <cmath>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/schedule_checks.h"
#include "models/samplers/table_math.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
namespace {

/// Factor of the predicted noise in the clean sample that it points at, which only clipping keeps
/// finite where there is no signal.
float noise_to_clean(const spec::SchedulerConfig& config, float root_alpha) {
  const bool divides = config.prediction_type == spec::PredictionType::kEpsilon;
  const bool clips = config.clip_sample && !config.thresholding;
  return divides && !clips ? 1 / root_alpha : 0;
}

/// Standard deviation of the noise that the first step begins with, of samples that are not scaled
/// to unit variance.
double first_deviation(const spec::SchedulerConfig& config, const std::vector<float>& sigmas) {
  const float max = *std::max_element(sigmas.begin(), sigmas.end());
  return config.timestep_spacing == spec::TimestepSpacing::kLeading ? std::sqrt(max * max + 1.0f)
                                                                    : max;
}

}  // namespace

DDIMSchedule::DDIMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run) {
  const int trained = config.num_train_timesteps;
  const double eta = run.settings.eta;
  const auto alphas = alphas_cumprod(config, false);
  const float final_alpha = config.set_alpha_to_one ? 1.0f : alphas[0];
  timesteps = spaced_timesteps(config, run.num_steps, trained, 0, true);
  for (std::size_t i = 0; i < timesteps.size(); ++i) {
    const int t = static_cast<int>(timesteps[i]);
    // The stride, not the next timestep: they differ for linspace and trailing, as in diffusers.
    const int next = t - trained / run.num_steps;
    const float alpha = alphas[t];
    const float next_alpha = next >= 0 ? alphas[next] : final_alpha;
    const float variance = (1 - next_alpha) / (1 - alpha) * (1 - alpha / next_alpha);
    const float deviation = eta > 0 ? static_cast<float>(eta) * std::sqrt(variance) : 0;
    const Step s{std::sqrt(alpha), std::sqrt(1 - alpha), std::sqrt(next_alpha),
                 std::sqrt(1 - next_alpha - deviation * deviation), deviation};
    const bool divides = config.prediction_type == spec::PredictionType::kSample;
    require_finite(config, run, i,
                   {s.next_root_beta, s.deviation, noise_to_clean(config, s.root_alpha),
                    divides ? 1 / s.root_beta : 0});
    steps.push_back(s);
  }
}

DDPMSchedule::DDPMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run)
    : timesteps(run.settings.timesteps) {
  const auto alphas = alphas_cumprod(config, false);
  if (timesteps.empty())
    timesteps = spaced_timesteps(config, run.num_steps, config.num_train_timesteps, 0, true);
  for (std::size_t i = 0; i < timesteps.size(); ++i) {
    const int t = static_cast<int>(timesteps[i]);
    const float alpha = alphas[t];
    const float next = i + 1 < timesteps.size() ? alphas[static_cast<int>(timesteps[i + 1])] : 1.0f;
    const float beta = 1.0f - alpha;
    const float next_beta = 1.0f - next;
    const float current_alpha = alpha / next;
    const float current_beta = 1.0f - current_alpha;
    const float variance = std::max(next_beta / beta * current_beta, 1e-20f);
    Step s{};
    s.root_alpha = std::sqrt(alpha);
    s.root_beta = std::sqrt(beta);
    s.clean_scale = std::sqrt(next) * current_beta / beta;
    s.sample_scale = std::sqrt(current_alpha) * next_beta / beta;
    switch (config.ddpm_variance) {
      case spec::DdpmVariance::kFixedSmall:
        s.deviation = std::sqrt(variance);
        break;
      case spec::DdpmVariance::kFixedSmallLog:
        s.deviation = std::exp(0.5f * std::log(variance));
        break;
      case spec::DdpmVariance::kFixedLarge:
        s.deviation = std::sqrt(current_beta);
        break;
    }
    require_finite(
        config, run, i,
        {s.clean_scale, s.sample_scale, s.deviation, noise_to_clean(config, s.root_alpha)});
    steps.push_back(s);
  }
}

LCMSchedule::LCMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run)
    : timesteps(run.settings.timesteps) {
  constexpr float kDataDeviation = 0.5f;
  const int num_steps = run.num_steps;
  const int original = config.original_inference_steps;
  const auto alphas = alphas_cumprod(config, false);
  const int stride = config.num_train_timesteps / original;
  // Evenly spread over the distilled times, the first of each share.
  const double share = static_cast<double>(original) / num_steps;
  for (int i = static_cast<int>(timesteps.size()); i < num_steps; ++i) {
    const int index = static_cast<int>(std::floor(i * share));
    timesteps.push_back((original - index) * stride - 1);
  }
  for (std::size_t i = 0; i < timesteps.size(); ++i) {
    const int t = static_cast<int>(timesteps[i]);
    const int next = i + 1 < timesteps.size() ? static_cast<int>(timesteps[i + 1]) : t;
    const float scaled = static_cast<float>(t) * static_cast<float>(config.timestep_scaling);
    const float sum = scaled * scaled + kDataDeviation * kDataDeviation;
    const Step s{std::sqrt(alphas[t]),
                 std::sqrt(1 - alphas[t]),
                 std::sqrt(alphas[next]),
                 std::sqrt(1 - alphas[next]),
                 kDataDeviation * kDataDeviation / sum,
                 scaled / std::sqrt(sum)};
    require_finite(config, run, i,
                   {s.sample_share, s.clean_share, noise_to_clean(config, s.root_alpha)});
    steps.push_back(s);
  }
}

EulerSchedule::EulerSchedule(const spec::SchedulerConfig& config, const SamplerRun& run)
    : timesteps(run.settings.timesteps) {
  const int num_steps = run.num_steps;
  const auto training = training_sigmas(alphas_cumprod(config, true));
  const std::vector<float> log_training = logs(training);
  const auto& given = run.settings.sigmas;
  if (!given.empty()) {
    for (std::size_t i = 0; i + 1 < given.size(); ++i)
      timesteps.push_back(time_of_sigma(static_cast<float>(given[i]), log_training));
  } else if (timesteps.empty()) {
    timesteps = spaced_timesteps(config, num_steps, config.num_train_timesteps, 0, false);
  }
  for (double& t : timesteps)
    t = static_cast<float>(t);
  std::vector<double> levels;
  if (!given.empty()) {
    levels.assign(given.begin(), given.end() - 1);
  } else if (config.log_linear) {
    for (const float level :
         table::linspace(log_training.back(), log_training.front(), num_steps + 1))
      levels.push_back(table::exp(level));
  } else {
    levels = interpolate(timesteps, training);
  }
  if (given.empty() && config.sigma_spacing != spec::SigmaSpacing::kSchedule) {
    const double max = config.sigma_max.value_or(levels.front());
    const double min = config.sigma_min.value_or(levels.back());
    levels = respaced_sigmas(config.sigma_spacing, max, min, num_steps);
    timesteps = times_of_sigmas(levels, log_training);
    for (double& t : timesteps)
      t = static_cast<float>(t);
  }
  sigmas.assign(levels.begin(), levels.end());
  if (given.empty()) {
    sigmas.push_back(config.final_sigma_zero ? 0.0f : training.front());
  } else {
    sigmas.push_back(static_cast<float>(given.back()));
  }
  if (config.continuous_timesteps && config.prediction_type == spec::PredictionType::kVPrediction) {
    timesteps.clear();
    for (std::size_t i = 0; i + 1 < sigmas.size(); ++i)
      timesteps.push_back(0.25f * table::log(sigmas[i]));
  }
  for (std::size_t i = 0; i < timesteps.size(); ++i)
    require_finite(config, run, i, {1 / sigmas[i], sigmas[i], sigmas[i + 1]});
  init_noise_sigma = first_deviation(config, sigmas);
}

EulerAncestralSchedule::EulerAncestralSchedule(const spec::SchedulerConfig& config,
                                               const SamplerRun& run) {
  const auto training = training_sigmas(alphas_cumprod(config, true));
  timesteps = spaced_timesteps(config, run.num_steps, config.num_train_timesteps, 0, false);
  for (double& t : timesteps)
    t = static_cast<float>(t);
  for (const double sigma : interpolate(timesteps, training))
    sigmas.push_back(static_cast<float>(sigma));
  sigmas.push_back(0.0f);
  for (std::size_t i = 0; i < timesteps.size(); ++i) {
    // Computed in float32: the result is the difference of two close squares.
    const float from = sigmas[i] * sigmas[i], to = sigmas[i + 1] * sigmas[i + 1];
    up.push_back(table::sqrt(to * (from - to) / from));
    down.push_back(table::sqrt(to - up[i] * up[i]));
    require_finite(config, run, i, {1 / sigmas[i], sigmas[i], up[i], down[i]});
  }
  init_noise_sigma = first_deviation(config, sigmas);
}

FlowMatchEulerSchedule::FlowMatchEulerSchedule(const spec::SchedulerConfig& config,
                                               const SamplerRun& run) {
  const double trained = config.num_train_timesteps;
  const auto& given = run.settings.sigmas;
  const bool in_float32 = run.even_sigmas || !given.empty();
  std::vector<double> levels;
  if (!given.empty()) {
    for (const double s : given)
      levels.push_back(static_cast<float>(s));
  } else if (run.even_sigmas) {
    levels = linspace(1.0, 1.0 / run.num_steps, run.num_steps);
    for (double& s : levels)
      s = static_cast<float>(s);
  } else {
    // The ends of the training schedule are shifted already, and once more below, as in diffusers.
    const auto end_of = [&](float time) {
      const float s = time / static_cast<float>(trained);
      if (config.use_dynamic_shifting) return s;
      const auto shift = static_cast<float>(config.shift);
      return shift * s / (1.0f + static_cast<float>(config.shift - 1) * s);
    };
    const double max = end_of(static_cast<float>(trained));
    const double min = end_of(1.0f);
    for (double time : linspace(max * trained, min * trained, run.num_steps))
      levels.push_back(time / trained);
  }
  levels = shifted_sigmas(config, levels, dynamic_shift(config, run), in_float32);
  if (config.sigma_spacing != spec::SigmaSpacing::kSchedule)
    levels = respaced_sigmas(config.sigma_spacing, levels.front(), levels.back(), run.num_steps);
  for (const double s : levels) {
    sigmas.push_back(static_cast<float>(s));
    timesteps.push_back(sigmas.back() * static_cast<float>(trained));
  }
  sigmas.push_back(0.0f);
  for (std::size_t i = 0; i < timesteps.size(); ++i)
    require_finite(config, run, i, {sigmas[i]});
}

}  // namespace troupe::models
