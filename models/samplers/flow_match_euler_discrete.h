#pragma once
#include "models/samplers/sampler.h"
#include "models/samplers/single_step_schedules.h"

namespace troupe::models {

/// Euler's method for flow matching (arXiv 2403.03206): the model predicts noise - clean, a sample
/// is (1 - σ) clean + σ noise. Keeps nothing between steps.
class FlowMatchEulerDiscreteScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  FlowMatchEulerDiscreteScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int) const override { return config_.stochastic; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;

 private:
  spec::SchedulerConfig config_;
  FlowMatchEulerSchedule schedule_;
};

}  // namespace troupe::models
