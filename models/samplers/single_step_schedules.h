#pragma once
#include <vector>

#include "models/samplers/sampler_run.h"

// Schedules of samplers that keep nothing between steps: the times at which the model is called,
// and the scalars of each step. Their constructors throw std::invalid_argument where a step that is
// computed has no finite value, or a time that the model was not trained with.

namespace troupe::models {

struct DDIMSchedule {
  struct Step {
    float root_alpha, root_beta;            // signal and noise where the step starts
    float next_root_alpha, next_root_beta;  // and where it ends, without the noise that is added
    float deviation;                        // of that
  };

  DDIMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<Step> steps;
};

struct DDPMSchedule {
  struct Step {
    float root_alpha, root_beta;      // signal and noise where the step starts
    float clean_scale, sample_scale;  // of the mean where it ends
    float deviation;                  // of the noise added
  };

  DDPMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<Step> steps;
};

struct LCMSchedule {
  struct Step {
    float root_alpha, root_beta;            // signal and noise where the step starts
    float next_root_alpha, next_root_beta;  // and where it ends
    float sample_share, clean_share;        // in the denoised sample
  };

  LCMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<Step> steps;
};

struct EulerSchedule {
  EulerSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<float> sigmas;  // one more than timesteps
  double init_noise_sigma = 1.0;
};

struct EulerAncestralSchedule {
  EulerAncestralSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<float> sigmas;    // one more than timesteps
  std::vector<float> up, down;  // noise that a step adds, and what it leaves before
  double init_noise_sigma = 1.0;
};

struct FlowMatchEulerSchedule {
  FlowMatchEulerSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<float> sigmas;  // one more than timesteps
};

}  // namespace troupe::models
