#pragma once
#include <cstdint>
#include <optional>

#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Settings that a run's schedule depends on beside the configuration.
struct SamplerRun {
  int num_steps = 0;
  /// Tokens of the picture, for schedules that shift with its size (use_dynamic_shifting).
  std::int64_t image_tokens = 0;
  /// The noise levels fall evenly from 1 to 1 / num_steps before they are shifted, as FLUX's
  /// pipeline has it, instead of to the schedule's last. Flow matching only.
  bool even_sigmas = false;
  /// Schedules that shift with the picture's size shift with num_steps, too, as FLUX.2's pipelines
  /// have it, instead of by the configuration. Flow matching only.
  bool shifts_by_steps = false;
  /// Schedules that shift with the picture's size shift by this instead: the logarithm of the
  /// factor, or the factor itself. Flow matching only.
  std::optional<double> fixed_shift = {};
  /// Number of steps left out at the start, for a job that begins with a picture: the first step
  /// after them is step 0, and multistep samplers begin there without a history.
  int first = 0;
  spec::PipelineTask task = spec::PipelineTask::generation;
  /// Settings of the sampler. If they give timesteps or noise levels, num_steps is the number of
  /// steps that these make.
  spec::SamplerSettings settings = {};
};

}  // namespace troupe::models
