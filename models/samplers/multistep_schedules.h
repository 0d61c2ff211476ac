#pragma once
#include <vector>

#include "models/samplers/sampler_run.h"

// Schedules of samplers that look back at earlier predictions: the times at which the model is
// called, and the scalars of each step. Their constructors throw std::invalid_argument where a step
// that is computed has no finite value, or a time that the model was not trained with.

namespace troupe::models {

struct DPMSolverSchedule {
  // next = sample * sample_scale + d0 * D0 + d1 * D1 + d2 * D2, where the D are the divided
  // differences of the predictions, of `order` of them; with the SDE + noise * noise.
  struct Step {
    int order = 1;
    float alpha = 1, sigma = 0;  // of the noise level where the step starts
    float sample_scale = 1, d0 = 0, d1 = 0, d2 = 0, noise = 0;
    float inverse_r0 = 0, inverse_r1 = 0, weight = 0, inverse_sum = 0;
  };

  DPMSolverSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<Step> steps;
};

struct UniPCSchedule {
  // next = sample_scale * sample - clean_scale * m0 - rest * Σ shares[k] * (m - m0) / ratios[k],
  // with the predictions m before m0, newest first, and, where it corrects, the one at its end.
  // Where there are `sides`, the shares solve matrix [n, n] · shares = sides, row by row.
  struct Update {
    float sample_scale = 1, clean_scale = 0, rest = 0;
    std::vector<float> shares, ratios;
    std::vector<float> matrix, sides;
  };
  struct Step {
    float alpha = 1, sigma = 0;  // of the noise level where the step starts
    Update predictor, corrector;
    bool corrects = false;
  };

  UniPCSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<Step> steps;
};

struct PNDMSchedule {
  static constexpr int kCallsOfRound = 4;

  // From one training time to another: next = sample_scale * x - change * out / divisor.
  struct Move {
    float root_alpha = 1, root_beta = 0;
    float sample_scale = 1, change = 0, divisor = 1;
  };
  struct Noise {
    float root_alpha = 1, root_beta = 0;
  };

  PNDMSchedule(const spec::SchedulerConfig& config, const SamplerRun& run);

  std::vector<double> timesteps;
  std::vector<int> round_times;  // of the Runge-Kutta calls; empty where they are skipped
  std::vector<Move> moves;
  std::vector<Noise> noises;
};

}  // namespace troupe::models
