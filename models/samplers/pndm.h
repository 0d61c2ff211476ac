#pragma once
#include "models/samplers/multistep_schedules.h"
#include "models/samplers/sampler.h"

namespace troupe::models {

/// PNDM (arXiv 2202.09778): linear multistep, order 4. It begins either with three rounds of
/// Runge-Kutta, of four calls each, or (skip_prk_steps, as Stable Diffusion 1.5 has it) with lower
/// orders, where the second time is visited twice. So the model is called more often than there are
/// times: model_calls. A state holds the earlier predictions, oldest first; after them,
/// within a round, the weighted sum of its predictions; last the sample that a round or the
/// repeated call began with.
class PNDMScheduler final : public Sampler {
 public:
  /// Throws std::invalid_argument for steps that the schedule cannot compute.
  PNDMScheduler(spec::SchedulerConfig config, const SamplerRun& run);

  int steps() const override { return static_cast<int>(schedule_.timesteps.size()); }
  double timestep(int i) const override { return schedule_.timesteps.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;

 private:
  bool is_round(int call) const { return call < static_cast<int>(schedule_.round_times.size()); }
  std::size_t remembered(int call) const;
  at::Tensor combine(SamplerState& state, int call, const at::Tensor& out, const at::Tensor& sample,
                     at::Tensor& start) const;

  spec::SchedulerConfig config_;
  int first_;  // call that begins without a history
  PNDMSchedule schedule_;
};

}  // namespace troupe::models
