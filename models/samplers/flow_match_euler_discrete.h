#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Euler's method for flow matching (arXiv 2403.03206): the model predicts noise - clean, a sample
/// is (1 - σ) clean + σ noise. Keeps nothing between steps.
class FlowMatchEulerDiscreteScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument if the schedule shifts with the picture's size and run has no
  /// image_tokens.
  FlowMatchEulerDiscreteScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  bool noise_needed(int) const override { return config_.stochastic; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override;

 private:
  spec::SchedulerConfig config_;
  std::vector<double> timesteps_;
  std::vector<float> sigmas_;  // one more than timesteps
};

/// Sigmas as flow matching shifts them, in the arithmetic of T: towards 1 by a factor that depends
/// on the picture's tokens where the configuration says so, and stretched to end at shift_terminal.
std::vector<double> shifted_sigmas(const spec::SchedulerConfig& config,
                                   const std::vector<double>& sigmas, std::int64_t image_tokens,
                                   bool in_float32);

}  // namespace troupe::models
