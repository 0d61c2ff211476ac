#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "models/samplers/sampler_run.h"

namespace troupe::models {

/// State that a multistep sampler keeps of one patch: its own earlier predictions, oldest first.
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

  /// Number of times that the model is called. With some schedules this differs from the number of
  /// steps asked for (PNDM; trailing spacing with clipped lambdas), as in diffusers.
  virtual int steps() const = 0;

  /// The time that the model is given at step `i`, 0 ≤ i < steps(). Throws std::out_of_range.
  virtual double timestep(int i) const = 0;

  /// Unit-variance noise is multiplied by this before the first step.
  virtual double init_noise_sigma() const = 0;

  /// Returns `sample` as the model takes it at step `i`.
  virtual at::Tensor scale_model_input(const at::Tensor& sample, int i) const;

  /// Returns whether step `i` adds noise. If so, the caller draws the noise for the whole batch of
  /// pictures, [B, C, H, W] of unit variance, from the generator that the start's noise came from,
  /// once a step in the order of steps, and passes the rows of `sample`. diffusers draws the same,
  /// so a seed gives its picture, however the rows are spread.
  virtual bool noise_needed(int) const { return false; }

  /// The sample after step `i`. `sample` is [B, C, h, w]; `model_output` has its shape, or twice
  /// its channels where the configuration says `variance_type: learned` (the second half is
  /// dropped). `noise` has the sample's shape where noise_needed(i).
  /// Steps of one state go 0, 1, 2, …; the result has the dtype of the prediction. Throws
  /// std::invalid_argument for shapes that differ, noise that is missing or a state that is not at
  /// step `i`.
  virtual at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                          const at::Tensor& sample, const at::Tensor& noise = {}) const = 0;

  /// Returns the sample before step `i` whose result is `clean`: `clean` and `noise` of unit
  /// variance in the shares of that step, in the dtype of `clean`.
  virtual at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const = 0;

  /// Returns the clean sample that step `i` points at; takes what `step` takes. Samplers without
  /// such a notion return the sample after the step (DPM-Solver: diffusers' gives none either).
  virtual at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                           const at::Tensor& sample, const at::Tensor& noise = {}) const {
    return step(state, i, model_output, sample, noise);
  }

  /// True if a step needs statistics of the whole picture (dynamic thresholding).
  virtual bool needs_whole_picture() const { return false; }
};

/// The sampler named in a checkpoint's scheduler_config.json, or another one taking over that
/// file's keys as diffusers' `from_config` does. `name`: empty, one of spec::sampler_names(), or a
/// diffusers class name. Throws std::runtime_error naming key and value for whatever is not
/// supported, and std::invalid_argument for an unknown name or an impossible number of steps.
std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      const SamplerRun& run);
std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      int num_steps);

/// `noise` in the sample's device and float32, for step `i`. Throws std::invalid_argument if it is
/// undefined or has another shape.
at::Tensor step_noise(const at::Tensor& noise, const at::Tensor& sample, int i);

}  // namespace troupe::models
