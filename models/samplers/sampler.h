#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace troupe::spec {
struct SchedulerSpec;
}

namespace troupe::models {

/// What a multistep sampler remembers of one patch: its own earlier predictions, oldest first.
/// The tensors are never written again once they are in here, so copies share them.
struct SamplerState {
  std::vector<at::Tensor> history;
};

/// One sampler set up for one number of steps. Immutable and free of whole-picture state: unless
/// `needs_whole_picture()`, a step is elementwise, so stepping a patch gives the rows that stepping
/// the whole picture gives, bit for bit. Numbers follow diffusers 0.42 in value and precision.
class Sampler {
 public:
  virtual ~Sampler() = default;

  /// How many times the model is called. Some schedules give another count than was asked for
  /// (trailing spacing with clipped lambdas), as in diffusers.
  virtual int steps() const = 0;

  /// The time that the model is given at step `i`, 0 ≤ i < steps(). Throws std::out_of_range.
  virtual double timestep(int i) const = 0;

  /// Unit-variance noise is multiplied by this before the first step.
  virtual double init_noise_sigma() const = 0;

  /// What the model sees of `sample` at step `i`.
  virtual at::Tensor scale_model_input(const at::Tensor& sample, int i) const;

  /// The sample after step `i`. `sample` is [B, C, h, w]; `model_output` has its shape, or twice
  /// its channels where the configuration says `variance_type: learned` (the second half is
  /// dropped). Steps of one state go 0, 1, 2, …; the result has the dtype of the prediction. Throws
  /// std::invalid_argument for shapes that differ or a state that is not at step `i`.
  virtual at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                          const at::Tensor& sample) const = 0;

  /// The clean sample that step `i` points at; takes what `step` takes. The sample after the step
  /// where a sampler has no such notion (DPM-Solver: diffusers' gives none either).
  virtual at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                           const at::Tensor& sample) const {
    return step(state, i, model_output, sample);
  }

  /// True if a step needs statistics of the whole picture (dynamic thresholding).
  virtual bool needs_whole_picture() const { return false; }
};

/// The sampler named in a checkpoint's scheduler_config.json, or another one taking over that
/// file's keys as diffusers' `from_config` does. `name`: empty, one of spec::sampler_names(), or a
/// diffusers class name. Throws std::runtime_error naming key and value for whatever is not
/// supported, and std::invalid_argument for an unknown name or an impossible number of steps.
std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      int num_steps);

}  // namespace troupe::models
