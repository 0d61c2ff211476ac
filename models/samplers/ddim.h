#pragma once
#include "models/samplers/sampler.h"
#include "models/samplers/single_step_schedules.h"

namespace troupe::models {

/// DDIM (arXiv 2010.02502); its steps add noise where eta is above 0. Keeps nothing between steps.
/// As in diffusers the step is taken in the sample's own dtype.
class DDIMScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  DDIMScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int) const override { return eta_ > 0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  struct Prediction {
    at::Tensor clean, noise;
  };

  Prediction predict(int i, const at::Tensor& model_output, const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  double eta_;
  DDIMSchedule schedule_;
};

}  // namespace troupe::models
