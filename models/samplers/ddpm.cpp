#include "models/samplers/ddpm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {

DDPMScheduler::DDPMScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)) {
  const int num_steps = run.num_steps;
  const int trained = config_.num_train_timesteps;
  const at::Tensor product = alphas_cumprod(config_, false);
  const float* alphas = product.const_data_ptr<float>();
  timesteps_ = run.settings.timesteps;
  if (timesteps_.empty()) timesteps_ = spaced_timesteps(config_, num_steps, trained, 0, true);
  for (size_t i = 0; i < timesteps_.size(); ++i) {
    const int t = static_cast<int>(timesteps_[i]);
    const float alpha = alphas[t];
    const float next =
        i + 1 < timesteps_.size() ? alphas[static_cast<int>(timesteps_[i + 1])] : 1.0f;
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
    s.min_log = std::log(variance);
    s.max_log = std::log(current_beta);
    switch (config_.ddpm_variance) {
      case spec::DdpmVariance::kFixedSmall:
        s.deviation = std::sqrt(variance);
        break;
      case spec::DdpmVariance::kFixedSmallLog:
        s.deviation = std::exp(0.5f * s.min_log);
        break;
      case spec::DdpmVariance::kFixedLarge:
        s.deviation = std::sqrt(current_beta);
        break;
      case spec::DdpmVariance::kLearnedRange:
        break;
    }
    steps_.push_back(s);
  }
}

at::Tensor DDPMScheduler::predict(int i, const at::Tensor& out, const at::Tensor& sample) const {
  const Step& s = steps_.at(i);
  return limit_sample(
      config_, clean_sample(config_.prediction_type, out, sample, s.root_alpha, s.root_beta));
}

at::Tensor DDPMScheduler::step(SamplerState&, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor& noise) const {
  const bool learned = config_.ddpm_variance == spec::DdpmVariance::kLearnedRange;
  const at::Tensor out = mean_part(model_output, sample, learned);
  const Step& s = steps_.at(i);
  const at::Tensor next = s.clean_scale * predict(i, out, sample) + s.sample_scale * sample;
  if (!noise_needed(i)) return next;
  const at::Tensor drawn = step_noise(noise, sample, i).to(out.scalar_type());
  if (!learned) return next + s.deviation * drawn;
  if (model_output.size(1) != 2 * sample.size(1)) {
    throw std::invalid_argument("[DDPMScheduler] " + config_.file +
                                ": variance_type = \"learned_range\" needs a model that predicts "
                                "the variance as well");
  }
  const at::Tensor part = (model_output.narrow(1, sample.size(1), sample.size(1)) + 1) / 2;
  const at::Tensor log_variance = part * s.max_log + (1 - part) * s.min_log;
  return next + at::exp(0.5 * log_variance) * drawn;
}

at::Tensor DDPMScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                                const at::Tensor& sample, const at::Tensor&) const {
  const bool learned = config_.ddpm_variance == spec::DdpmVariance::kLearnedRange;
  return predict(i, mean_part(model_output, sample, learned), sample);
}

at::Tensor DDPMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const Step& s = steps_.at(i);
  return s.root_alpha * clean + s.root_beta * noise;
}

}  // namespace troupe::models
