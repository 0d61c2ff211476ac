#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Sampling of latent consistency models (arXiv 2310.04378): each step jumps to the clean sample
/// and adds noise back for the next. Keeps nothing between steps.
class LCMScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for more steps than original_inference_steps.
  LCMScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int i) const override { return i + 1 < steps(); }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  struct Step {
    float root_alpha, root_beta;            // signal and noise where the step starts
    float next_root_alpha, next_root_beta;  // and where it ends
    float sample_share, clean_share;        // of the denoised sample
  };

  spec::SchedulerConfig config_;
  std::vector<double> timesteps_;
  std::vector<Step> steps_;
};

}  // namespace troupe::models
