#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Euler's method with noise added back after each step. Its samples are not scaled to unit
/// variance, as Euler's. Keeps nothing between steps.
class EulerAncestralDiscreteScheduler final : public Sampler {
 public:
  EulerAncestralDiscreteScheduler(spec::SchedulerConfig config, int num_steps);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return init_noise_sigma_; }
  bool noise_needed(int) const override { return true; }
  at::Tensor scale_model_input(const at::Tensor& sample, int i) const override;
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;

 private:
  /// Returns the predicted clean sample in float32.
  at::Tensor predict(int i, const at::Tensor& model_output, const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  std::vector<double> timesteps_;
  std::vector<float> sigmas_;     // one more than timesteps
  std::vector<float> up_, down_;  // noise that a step adds, and what it leaves before
  double init_noise_sigma_ = 1.0;
};

}  // namespace troupe::models
