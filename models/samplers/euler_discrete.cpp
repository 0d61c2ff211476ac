#include "models/samplers/euler_discrete.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/table_math.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {

EulerDiscreteScheduler::EulerDiscreteScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)) {
  const int num_steps = run.num_steps;
  const at::Tensor ratios = training_sigmas(alphas_cumprod(config_, true));
  const std::vector<float> training(ratios.const_data_ptr<float>(),
                                    ratios.const_data_ptr<float>() + ratios.numel());
  const std::vector<float> log_training = logs(training);

  const auto& given = run.settings.sigmas;
  timesteps_ = run.settings.timesteps;
  if (!given.empty()) {
    for (std::size_t i = 0; i + 1 < given.size(); ++i)
      timesteps_.push_back(time_of_sigma(static_cast<float>(given[i]), log_training));
  } else if (timesteps_.empty()) {
    timesteps_ = spaced_timesteps(config_, num_steps, config_.num_train_timesteps, 0, false);
  }
  for (double& t : timesteps_) {
    t = static_cast<float>(t);
  }
  std::vector<double> sigmas;
  if (!given.empty()) {
    sigmas.assign(given.begin(), given.end() - 1);
  } else if (config_.log_linear) {
    const at::Tensor spaced =
        table::exp(table::linspace(log_training.back(), log_training.front(), num_steps + 1));
    sigmas.assign(spaced.const_data_ptr<float>(), spaced.const_data_ptr<float>() + spaced.numel());
  } else {
    sigmas = interpolate(timesteps_, training);
  }
  if (given.empty() && config_.sigma_spacing != spec::SigmaSpacing::kSchedule) {
    const double max = config_.sigma_max.value_or(sigmas.front());
    const double min = config_.sigma_min.value_or(sigmas.back());
    sigmas = respaced_sigmas(config_.sigma_spacing, max, min, num_steps);
    timesteps_ = times_of_sigmas(sigmas, log_training);
    for (double& t : timesteps_) {
      t = static_cast<float>(t);
    }
  }
  sigmas_.assign(sigmas.begin(), sigmas.end());
  if (given.empty()) {
    sigmas_.push_back(config_.final_sigma_zero ? 0.0f : training.front());
  } else {
    sigmas_.push_back(static_cast<float>(given.back()));
  }
  if (config_.continuous_timesteps &&
      config_.prediction_type == spec::PredictionType::kVPrediction) {
    timesteps_.clear();
    for (size_t i = 0; i + 1 < sigmas_.size(); ++i) {
      timesteps_.push_back(0.25f * static_cast<float>(std::log(static_cast<double>(sigmas_[i]))));
    }
  }
  const float max = *std::max_element(sigmas_.begin(), sigmas_.end());
  init_noise_sigma_ = config_.timestep_spacing == spec::TimestepSpacing::kLeading
                          ? std::sqrt(max * max + 1.0f)
                          : max;
}

at::Tensor EulerDiscreteScheduler::scale_model_input(const at::Tensor& sample, int i) const {
  const float sigma = sigmas_.at(i);
  return sample / std::sqrt(sigma * sigma + 1.0f);
}

at::Tensor EulerDiscreteScheduler::predict(int i, const at::Tensor& model_output,
                                           const at::Tensor& sample) const {
  const float sigma = sigmas_.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor x = sample.to(at::kFloat);
  at::Tensor clean;
  switch (config_.prediction_type) {
    case spec::PredictionType::kEpsilon:
      clean = x - sigma * out;
      break;
    case spec::PredictionType::kSample:
      clean = out;
      break;
    case spec::PredictionType::kVPrediction: {
      const float squared = sigma * sigma + 1.0f;
      clean = out * (-sigma / std::sqrt(squared)) + x / squared;
      break;
    }
    case spec::PredictionType::kFlow:
      break;  // refused with the configuration
  }
  return clean;
}

at::Tensor EulerDiscreteScheduler::step(SamplerState&, int i, const at::Tensor& model_output,
                                        const at::Tensor& sample, const at::Tensor&) const {
  const at::Tensor clean = predict(i, model_output, sample);
  const at::Tensor x = sample.to(at::kFloat);
  const float sigma = sigmas_.at(i);
  const float change = sigmas_.at(i + 1) - sigma;
  return (x + ((x - clean) / sigma) * change).to(model_output.scalar_type());
}

at::Tensor EulerDiscreteScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                                         const at::Tensor& sample, const at::Tensor&) const {
  return predict(i, model_output, sample).to(model_output.scalar_type());
}

at::Tensor EulerDiscreteScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise,
                                             int i) const {
  return clean + noise * sigmas_.at(i);
}

}  // namespace troupe::models
