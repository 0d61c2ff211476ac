#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Ancestral sampling of DDPM (arXiv 2006.11239). Keeps nothing between steps.
class DDPMScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument if steps and steps_offset leave the training schedule.
  DDPMScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int i) const override { return timesteps_.at(i) > 0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  struct Step {
    float root_alpha, root_beta;      // signal and noise where the step starts
    float clean_scale, sample_scale;  // of the mean where it ends
    float deviation;                  // of the noise added, if fixed
    float min_log, max_log;           // logarithms of its variance between which it is learned
  };

  at::Tensor predict(int i, const at::Tensor& out, const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  std::vector<double> timesteps_;
  std::vector<Step> steps_;
};

}  // namespace troupe::models
