#include "models/samplers/ddim.h"

#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {

DDIMScheduler::DDIMScheduler(spec::SchedulerConfig config, int num_steps, double eta)
    : config_(std::move(config)), eta_(eta) {
  const int trained = config_.num_train_timesteps;
  const at::Tensor product = alphas_cumprod(config_, false);
  const float* alphas = product.const_data_ptr<float>();
  const float final_alpha = config_.set_alpha_to_one ? 1.0f : alphas[0];
  timesteps_ = spaced_timesteps(config_, num_steps, trained, 0, true);
  for (double time : timesteps_) {
    const int t = static_cast<int>(time);
    // The stride, not the next timestep: they differ for linspace and trailing, as in diffusers.
    const int next = t - trained / num_steps;
    const float alpha = alphas[t];
    const float next_alpha = next >= 0 ? alphas[next] : final_alpha;
    const float variance = (1 - next_alpha) / (1 - alpha) * (1 - alpha / next_alpha);
    const float deviation = eta > 0 ? static_cast<float>(eta) * std::sqrt(variance) : 0;
    steps_.push_back({std::sqrt(alpha), std::sqrt(1 - alpha), std::sqrt(next_alpha),
                      std::sqrt(1 - next_alpha - deviation * deviation), deviation});
  }
}

DDIMScheduler::Prediction DDIMScheduler::predict(int i, const at::Tensor& model_output,
                                                 const at::Tensor& sample) const {
  const Step& s = steps_.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor clean =
      clean_sample(config_.prediction_type, out, sample, s.root_alpha, s.root_beta);
  at::Tensor noise = out;
  if (config_.prediction_type == spec::PredictionType::kSample) {
    noise = (sample - s.root_alpha * clean) / s.root_beta;
  } else if (config_.prediction_type == spec::PredictionType::kVPrediction) {
    noise = s.root_alpha * out + s.root_beta * sample;
  }
  return {limit_sample(config_, clean), noise};
}

at::Tensor DDIMScheduler::step(SamplerState&, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor& drawn) const {
  const auto [clean, noise] = predict(i, model_output, sample);
  const Step& s = steps_[i];
  const at::Tensor next = s.next_root_alpha * clean + s.next_root_beta * noise;
  if (!noise_needed(i)) return next;
  return next + s.deviation * step_noise(drawn, sample, i).to(next.scalar_type());
}

at::Tensor DDIMScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                                const at::Tensor& sample, const at::Tensor&) const {
  return predict(i, model_output, sample).clean;
}

at::Tensor DDIMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const Step& s = steps_.at(i);
  return s.root_alpha * clean + s.root_beta * noise;
}

}  // namespace troupe::models
