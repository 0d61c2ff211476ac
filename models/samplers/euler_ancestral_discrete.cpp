#include "models/samplers/euler_ancestral_discrete.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/table_math.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {

EulerAncestralDiscreteScheduler::EulerAncestralDiscreteScheduler(spec::SchedulerConfig config,
                                                                 int num_steps)
    : config_(std::move(config)) {
  const at::Tensor ratios = training_sigmas(alphas_cumprod(config_, true));
  const std::vector<float> training(ratios.const_data_ptr<float>(),
                                    ratios.const_data_ptr<float>() + ratios.numel());
  timesteps_ = spaced_timesteps(config_, num_steps, config_.num_train_timesteps, 0, false);
  for (double& t : timesteps_)
    t = static_cast<float>(t);
  for (double sigma : interpolate(timesteps_, training))
    sigmas_.push_back(static_cast<float>(sigma));
  sigmas_.push_back(0.0f);
  // Computed in float32: the result is the difference of two close squares.
  const at::Tensor levels = at::tensor(sigmas_);
  const at::Tensor from = levels.slice(0, 0, -1).pow(2);
  const at::Tensor to = levels.slice(0, 1).pow(2);
  const at::Tensor up = table::sqrt(to * (from - to) / from);
  const at::Tensor down = table::sqrt(to - up.pow(2));
  up_.assign(up.const_data_ptr<float>(), up.const_data_ptr<float>() + up.numel());
  down_.assign(down.const_data_ptr<float>(), down.const_data_ptr<float>() + down.numel());
  const float max = *std::max_element(sigmas_.begin(), sigmas_.end());
  init_noise_sigma_ = config_.timestep_spacing == spec::TimestepSpacing::kLeading
                          ? std::sqrt(max * max + 1.0f)
                          : max;
}

at::Tensor EulerAncestralDiscreteScheduler::scale_model_input(const at::Tensor& sample,
                                                              int i) const {
  const float sigma = sigmas_.at(i);
  return sample / std::sqrt(sigma * sigma + 1.0f);
}

at::Tensor EulerAncestralDiscreteScheduler::predict(int i, const at::Tensor& model_output,
                                                    const at::Tensor& sample) const {
  const float sigma = sigmas_.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor x = sample.to(at::kFloat);
  if (config_.prediction_type == spec::PredictionType::kEpsilon) return x - sigma * out;
  const float squared = sigma * sigma + 1.0f;
  return out * (-sigma / std::sqrt(squared)) + x / squared;
}

at::Tensor EulerAncestralDiscreteScheduler::step(SamplerState&, int i,
                                                 const at::Tensor& model_output,
                                                 const at::Tensor& sample,
                                                 const at::Tensor& noise) const {
  const at::Tensor clean = predict(i, model_output, sample);
  const at::Tensor x = sample.to(at::kFloat);
  const float from = sigmas_.at(i);
  const at::Tensor next = x + ((x - clean) / from) * (down_[i] - from);
  return (next + step_noise(noise, sample, i) * up_[i]).to(model_output.scalar_type());
}

at::Tensor EulerAncestralDiscreteScheduler::clean(SamplerState&, int i,
                                                  const at::Tensor& model_output,
                                                  const at::Tensor& sample,
                                                  const at::Tensor&) const {
  return predict(i, model_output, sample).to(model_output.scalar_type());
}

at::Tensor EulerAncestralDiscreteScheduler::add_noise(const at::Tensor& clean,
                                                      const at::Tensor& noise, int i) const {
  return clean + noise * sigmas_.at(i);
}

}  // namespace troupe::models
