#pragma once
#include "models/samplers/sampler.h"
#include "models/samplers/single_step_schedules.h"

namespace troupe::models {

/// Euler's method on the noise level (arXiv 2206.00364, algorithm 2 without churn). Its samples are
/// not scaled to unit variance: see init_noise_sigma and scale_model_input. Keeps nothing between
/// steps.
class EulerDiscreteScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  EulerDiscreteScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return schedule_.init_noise_sigma; }
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
  EulerSchedule schedule_;
};

}  // namespace troupe::models
