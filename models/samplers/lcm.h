#pragma once
#include "models/samplers/sampler.h"
#include "models/samplers/single_step_schedules.h"

namespace troupe::models {

/// Sampling of latent consistency models (arXiv 2310.04378): each step jumps to the clean sample
/// and adds noise back for the next. Keeps nothing between steps.
class LCMScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  LCMScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int i) const override { return i + 1 < steps(); }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  spec::SchedulerConfig config_;
  LCMSchedule schedule_;
};

}  // namespace troupe::models
