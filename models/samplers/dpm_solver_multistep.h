#pragma once
#include "models/samplers/multistep_schedules.h"
#include "models/samplers/sampler.h"

namespace troupe::models {

/// DPM-Solver, DPM-Solver++ and its SDE form (arXiv 2206.00927, 2211.01095), multistep, orders 1 to
/// 3.
class DPMSolverMultistepScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  DPMSolverMultistepScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  bool noise_needed(int) const override { return config_.stochastic; }
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  at::Tensor prediction(const DPMSolverSchedule::Step& s, const at::Tensor& model_output,
                        const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  int first_;  // step that begins without a history
  DPMSolverSchedule schedule_;
};

}  // namespace troupe::models
