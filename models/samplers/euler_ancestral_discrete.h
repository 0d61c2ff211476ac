#pragma once
#include "models/samplers/sampler.h"
#include "models/samplers/single_step_schedules.h"

namespace troupe::models {

/// Euler's method with noise added back after each step. Its samples are not scaled to unit
/// variance, as Euler's. Keeps nothing between steps.
class EulerAncestralDiscreteScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  EulerAncestralDiscreteScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return schedule_.init_noise_sigma; }
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
  EulerAncestralSchedule schedule_;
};

}  // namespace troupe::models
