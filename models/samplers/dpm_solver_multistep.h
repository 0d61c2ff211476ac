#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// DPM-Solver, DPM-Solver++ and its SDE form (arXiv 2206.00927, 2211.01095), multistep, orders 1 to
/// 3.
class DPMSolverMultistepScheduler final : public Sampler {
 public:
  /// Throws std::runtime_error if a step of this schedule has no finite value.
  DPMSolverMultistepScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  bool noise_needed(int) const override { return config_.stochastic; }
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  // next = sample * sample_scale + d0 * D0 + d1 * D1 + d2 * D2, where the D are the divided
  // differences of the predictions, of `order` of them; with the SDE + noise * noise.
  struct Step {
    int order = 1;
    float alpha = 1, sigma = 0;  // of the noise level where the step starts
    float sample_scale = 1, d0 = 0, d1 = 0, d2 = 0, noise = 0;
    float inverse_r0 = 0, inverse_r1 = 0, weight = 0, inverse_sum = 0;
  };
  Step make_step(const std::vector<float>& sigmas, int i) const;
  int order_of(int i) const;
  at::Tensor prediction(const Step& s, const at::Tensor& model_output,
                        const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  int first_;  // step that begins without a history
  std::vector<double> timesteps_;
  std::vector<Step> steps_;
};

}  // namespace troupe::models
