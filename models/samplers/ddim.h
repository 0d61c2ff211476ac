#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// DDIM (arXiv 2010.02502); its steps add noise where eta is above 0. Keeps nothing between steps.
/// As in diffusers the step is taken in the sample's own dtype.
class DDIMScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument if steps and steps_offset leave the training schedule.
  DDIMScheduler(spec::SchedulerConfig config, int num_steps, double eta = 0);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int) const override { return eta_ > 0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  struct Step {
    float root_alpha, root_beta;            // signal and noise where the step starts
    float next_root_alpha, next_root_beta;  // and where it ends, without the noise that is added
    float deviation;                        // of that
  };

  struct Prediction {
    at::Tensor clean, noise;
  };

  Prediction predict(int i, const at::Tensor& model_output, const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  double eta_ = 0;
  std::vector<double> timesteps_;
  std::vector<Step> steps_;
};

}  // namespace troupe::models
