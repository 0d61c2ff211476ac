#pragma once
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// UniPC (arXiv 2302.04867), multistep, orders 1 to 3: each step first corrects the sample that it
/// is given by what the model says there, then predicts the next. A state holds the earlier
/// predictions, oldest first, and after them the corrected sample of the step before.
class UniPCMultistepScheduler final : public Sampler {
 public:
  /// Throws std::runtime_error if a step of this schedule has no finite value.
  UniPCMultistepScheduler(spec::SchedulerConfig config, int num_steps, int first = 0);

  int steps() const override { return static_cast<int>(timesteps_.size()); }
  double timestep(int i) const override { return timesteps_.at(i); }
  double init_noise_sigma() const override { return 1.0; }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override;
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override;
  bool needs_whole_picture() const override { return config_.thresholding; }

 private:
  // next = sample_scale * sample - clean_scale * m0 - rest * Σ shares[k] * (m - m0) / ratios[k],
  // with the predictions m before m0, newest first, and, where it corrects, the one at its end.
  struct Update {
    float sample_scale = 1, clean_scale = 0, rest = 0;
    std::vector<float> shares, ratios;
  };
  struct Step {
    float alpha = 1, sigma = 0;  // of the noise level where the step starts
    Update predictor, corrector;
    bool corrects = false;
  };

  int order_of(int i) const;
  Update make_update(const std::vector<float>& sigmas, int from, int order, bool corrector) const;
  at::Tensor prediction(const Step& s, const at::Tensor& model_output,
                        const at::Tensor& sample) const;

  spec::SchedulerConfig config_;
  int first_;  // step that begins without a history
  std::vector<double> timesteps_;
  std::vector<Step> steps_;
};

}  // namespace troupe::models
