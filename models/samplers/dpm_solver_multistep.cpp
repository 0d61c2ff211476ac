#include "models/samplers/dpm_solver_multistep.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/number_text.h"
#include "models/samplers/beta_schedule.h"
#include "models/samplers/noise_level.h"
#include "models/samplers/table_math.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
namespace {

// Number of training steps that are used: those whose log signal-to-noise is not below the clip.
int last_timestep(const spec::SchedulerConfig& config, const at::Tensor& alphas) {
  const at::Tensor lambda = table::log(table::sqrt(alphas)) - table::log(table::sqrt(1 - alphas));
  const std::vector<float> ascending = table::to_vector(lambda.flip(0).contiguous());
  const auto clipped = std::lower_bound(ascending.begin(), ascending.end(),
                                        static_cast<float>(config.lambda_min_clipped));
  return config.num_train_timesteps - static_cast<int>(clipped - ascending.begin());
}

}  // namespace

DPMSolverMultistepScheduler::DPMSolverMultistepScheduler(spec::SchedulerConfig config,
                                                         const SamplerRun& run)
    : config_(std::move(config)), first_(run.first) {
  const int num_steps = run.num_steps;
  const at::Tensor alphas = alphas_cumprod(config_, true);
  const std::vector<float> training = table::to_vector(training_sigmas(alphas));
  const std::vector<float> log_training = logs(training);
  const bool cosine = config_.beta_schedule == spec::BetaSchedule::kCosine;

  std::vector<double> sigmas;
  switch (config_.sigma_spacing) {
    case spec::SigmaSpacing::kSchedule:
      timesteps_ = run.settings.timesteps;
      if (timesteps_.empty())
        timesteps_ = spaced_timesteps(config_, num_steps, last_timestep(config_, alphas), 1, true);
      sigmas = interpolate(timesteps_, training);
      break;
    case spec::SigmaSpacing::kKarras:
      sigmas = karras_sigmas(training.back(), training.front(), num_steps);
      break;
    case spec::SigmaSpacing::kExponential:
      sigmas = exponential_sigmas(training.back(), training.front(), num_steps);
      break;
    case spec::SigmaSpacing::kBeta:
      sigmas = beta_sigmas(training.back(), training.front(), num_steps);
      break;
    case spec::SigmaSpacing::kFlow:
      for (double alpha : linspace(1, 1.0 / config_.num_train_timesteps, num_steps + 1)) {
        const double sigma = 1.0 - alpha;
        sigmas.push_back(config_.flow_shift * sigma / (1 + (config_.flow_shift - 1) * sigma));
      }
      std::reverse(sigmas.begin(), sigmas.end());
      sigmas.pop_back();
      for (double sigma : sigmas)
        timesteps_.push_back(std::trunc(sigma * config_.num_train_timesteps));
      break;
    case spec::SigmaSpacing::kLu:
      for (double lambda : linspace(0, 1, num_steps)) {
        const double from = log_training.back();
        sigmas.push_back(std::exp(from + lambda * (log_training.front() - from)));
      }
      break;
  }
  if (timesteps_.empty()) {
    timesteps_ = times_of_sigmas(sigmas, log_training);
    const bool whole = config_.sigma_spacing == spec::SigmaSpacing::kKarras ||
                       config_.sigma_spacing == spec::SigmaSpacing::kLu;
    if (whole && !cosine) {
      timesteps_ = rounded(std::move(timesteps_));
    }
    for (double& t : timesteps_) {
      t = std::trunc(t);
    }
  }
  std::vector<float> levels(sigmas.begin(), sigmas.end());
  levels.push_back(config_.final_sigma_zero ? 0.0f : training.front());
  for (int i = 0; i < steps(); ++i) {
    steps_.push_back(make_step(levels, i));
  }
}

int DPMSolverMultistepScheduler::order_of(int i) const {
  const int n = steps();
  const bool few = config_.lower_order_final && n < 15;
  if (i == n - 1 && (config_.euler_at_final || few || config_.final_sigma_zero)) return 1;
  const int known = std::clamp(i - first_ + 1, 1, config_.solver_order);
  return i == n - 2 && few ? std::min(known, 2) : known;
}

DPMSolverMultistepScheduler::Step DPMSolverMultistepScheduler::make_step(
    const std::vector<float>& sigmas, int i) const {
  const bool flow = config_.sigma_spacing == spec::SigmaSpacing::kFlow;
  const NoiseLevel t = noise_level(sigmas[i + 1], flow);
  const NoiseLevel s0 = noise_level(sigmas[i], flow);
  const at::Tensor h = t.lambda - s0.lambda;
  // The two solvers are one formula: the data solver integrates exp(-h) with the signal's scale,
  // the noise solver exp(h) with the noise's, and odd terms change sign.
  const bool plus = config_.plus_plus;
  const at::Tensor scale = plus ? t.alpha : t.sigma;
  // The SDE's step is twice as long, and noise makes up for it.
  const at::Tensor length = config_.stochastic ? 2.0 * h : h;
  const at::Tensor gain = table::exp(plus ? -length : length) - 1.0;

  Step s;
  s.order = order_of(i);
  s.alpha = s0.alpha.item<float>();
  s.sigma = s0.sigma.item<float>();
  s.sample_scale = (plus ? t.sigma / s0.sigma : t.alpha / s0.alpha).item<float>();
  if (config_.stochastic) {
    s.sample_scale = (t.sigma / s0.sigma * table::exp(-h)).item<float>();
    s.noise = (t.sigma * table::sqrt(1.0 - table::exp(-2 * h))).item<float>();
  }
  s.d0 = -(scale * gain).item<float>();
  const float second_term = plus ? (scale * (gain / length + 1.0)).item<float>()
                                 : -(scale * (gain / length - 1.0)).item<float>();
  if (s.order >= 2) {
    const NoiseLevel s1 = noise_level(sigmas[i - 1], flow);
    const at::Tensor r0 = (s0.lambda - s1.lambda) / h;
    s.inverse_r0 = (1.0 / r0).item<float>();
    s.d1 = s.order == 2 && !config_.heun ? -(0.5 * (scale * gain)).item<float>() : second_term;
    if (s.order == 3) {
      const NoiseLevel s2 = noise_level(sigmas[i - 2], flow);
      const at::Tensor r1 = (s1.lambda - s2.lambda) / h;
      s.inverse_r1 = (1.0 / r1).item<float>();
      s.weight = (r0 / (r0 + r1)).item<float>();
      s.inverse_sum = (1.0 / (r0 + r1)).item<float>();
      if (config_.stochastic) {
        // As diffusers has it: the sign of the exponential's part differs from the others'.
        s.d2 = (scale * ((-gain - length) / length.pow(2) - 0.5)).item<float>();
      } else {
        const at::Tensor curve = (plus ? gain + h : gain - h) / h.pow(2);
        s.d2 = -(scale * (curve - 0.5)).item<float>();
      }
    }
  }
  for (float v : {s.alpha, s.sigma, s.sample_scale, s.d0, s.d1, s.d2, s.inverse_r0, s.inverse_r1,
                  s.weight, s.inverse_sum, s.noise}) {
    if (!std::isfinite(v)) {
      throw std::runtime_error("[DPMSolverMultistepScheduler] " + config_.file + ": step " +
                               std::to_string(i) + " of " + std::to_string(steps()) +
                               " has no finite value: noise levels " + number_text(sigmas[i]) +
                               " and " + number_text(sigmas[i + 1]) + " are too close");
    }
  }
  return s;
}

at::Tensor DPMSolverMultistepScheduler::prediction(const Step& s, const at::Tensor& model_output,
                                                   const at::Tensor& sample) const {
  const at::Tensor out = mean_part(model_output, sample, config_.learned_variance);
  const auto limited = [&](const at::Tensor& clean) {
    if (!config_.thresholding) return clean;
    return threshold_sample(clean, config_.dynamic_thresholding_ratio, config_.sample_max_value);
  };
  if (config_.plus_plus) {
    switch (config_.prediction_type) {
      case spec::PredictionType::kEpsilon:
        return limited((sample - s.sigma * out) / s.alpha);
      case spec::PredictionType::kSample:
        return limited(out);
      case spec::PredictionType::kVPrediction:
        return limited(s.alpha * sample - s.sigma * out);
      case spec::PredictionType::kFlow:
        return limited(sample - s.sigma * out);
    }
  }
  at::Tensor noise = out;
  if (config_.prediction_type == spec::PredictionType::kSample) {
    noise = (sample - s.alpha * out) / s.sigma;
  } else if (config_.prediction_type == spec::PredictionType::kVPrediction) {
    noise = s.alpha * out + s.sigma * sample;
  }
  if (!config_.thresholding) return noise;
  const at::Tensor clean = limited((sample - s.sigma * noise) / s.alpha);
  return (sample - s.alpha * clean) / s.sigma;
}

at::Tensor DPMSolverMultistepScheduler::step(SamplerState& state, int i,
                                             const at::Tensor& model_output,
                                             const at::Tensor& sample,
                                             const at::Tensor& noise) const {
  const Step& s = steps_.at(i);
  const auto remembered = static_cast<size_t>(std::clamp(i - first_, 0, config_.solver_order - 1));
  if (state.history.size() != remembered) {
    throw std::invalid_argument("[DPMSolverMultistepScheduler] step " + std::to_string(i) +
                                " needs " + std::to_string(remembered) +
                                " earlier predictions, has " +
                                std::to_string(state.history.size()));
  }
  const at::Tensor m0 = prediction(s, model_output, sample);
  at::Tensor next = s.sample_scale * sample.to(at::kFloat) + s.d0 * m0;
  if (s.order >= 2) {
    const at::Tensor& m1 = state.history.back();
    at::Tensor d1 = s.inverse_r0 * (m0 - m1);
    if (s.order == 3) {
      const at::Tensor change = d1 - s.inverse_r1 * (m1 - state.history[state.history.size() - 2]);
      next = next + s.d1 * (d1 + s.weight * change) + s.d2 * (s.inverse_sum * change);
    } else {
      next = next + s.d1 * d1;
    }
  }
  if (config_.stochastic) next = next + s.noise * step_noise(noise, sample, i);
  if (config_.solver_order > 1) {
    state.history.push_back(m0);
    if (state.history.size() >= static_cast<size_t>(config_.solver_order)) {
      state.history.erase(state.history.begin());
    }
  }
  return next.to(m0.scalar_type());
}

at::Tensor DPMSolverMultistepScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise,
                                                  int i) const {
  const Step& s = steps_.at(i);
  return s.alpha * clean + s.sigma * noise;
}

}  // namespace troupe::models
