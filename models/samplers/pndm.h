#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// PNDM (arXiv 2202.09778): linear multistep, order 4. It begins either with three rounds of
/// Runge-Kutta, of four calls each, or (skip_prk_steps, as Stable Diffusion 1.5 has it) with lower
/// orders, where the second time is visited twice. So the model is called more often than there are
/// times: spec::model_calls. A state holds the earlier predictions, oldest first; after them,
/// within a round, the weighted sum of its predictions; last the sample that a round or the
/// repeated call began with.
class PNDMScheduler final : public Sampler {
 public:
  /// `first`: the call that begins without a history. Throws std::invalid_argument if a call's
  /// times leave the training schedule or there is none.
  PNDMScheduler(spec::SchedulerConfig config, int num_steps, int first = 0);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;

 private:
  // From one training time to another: next = sample_scale * x - change * out / divisor.
  struct Move {
    float root_alpha = 1, root_beta = 0;
    float sample_scale = 1, change = 0, divisor = 1;
  };
  struct Noise {
    float root_alpha = 1, root_beta = 0;
  };

  void set_times(int num_steps);
  Move make_move(const std::vector<float>& alphas, int from, int to) const;
  bool is_round(int call) const { return call < static_cast<int>(round_times_.size()); }
  std::size_t remembered(int call) const;
  at::Tensor combine(SamplerState& state, int call, const at::Tensor& out, const at::Tensor& sample,
                     at::Tensor& start) const;

  spec::SchedulerConfig config_;
  int first_;
  std::vector<double> timesteps_;
  std::vector<int> round_times_;  // of the Runge-Kutta calls; empty where they are skipped
  std::vector<Move> moves_;
  std::vector<Noise> noises_;
};

}  // namespace troupe::models
