#include "models/samplers/schedule_checks.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "models/samplers/multistep_schedules.h"
#include "models/samplers/single_step_schedules.h"

namespace troupe::models {

std::vector<double> scheduled_times(const spec::SchedulerConfig& config, const SamplerRun& run) {
  switch (config.kind) {
    case spec::SamplerKind::kDdim:
      return DDIMSchedule(config, run).timesteps;
    case spec::SamplerKind::kDdpm:
      return DDPMSchedule(config, run).timesteps;
    case spec::SamplerKind::kLcm:
      return LCMSchedule(config, run).timesteps;
    case spec::SamplerKind::kEulerDiscrete:
      return EulerSchedule(config, run).timesteps;
    case spec::SamplerKind::kEulerAncestral:
      return EulerAncestralSchedule(config, run).timesteps;
    case spec::SamplerKind::kFlowMatchEuler:
      return FlowMatchEulerSchedule(config, run).timesteps;
    case spec::SamplerKind::kDpmSolverMultistep:
      return DPMSolverSchedule(config, run).timesteps;
    case spec::SamplerKind::kUniPc:
      return UniPCSchedule(config, run).timesteps;
    case spec::SamplerKind::kPndm:
      return PNDMSchedule(config, run).timesteps;
    case spec::SamplerKind::kUser:
      break;
  }
  return std::vector<double>(run.num_steps);
}

int model_calls(const spec::SchedulerConfig& config, const SamplerRun& run) {
  const auto times = scheduled_times(config, run);
  const auto calls = static_cast<int>(times.size());
  if (calls <= run.first) {
    throw std::invalid_argument(
        fmt::format("[sampler] steps is {}, {} of them left out: lambda_min_clipped in {} leaves "
                    "times for {} alone: choose another sampler",
                    run.num_steps, run.first, config.file, calls));
  }
  return calls;
}

void require_finite(const spec::SchedulerConfig& config, const SamplerRun& run, std::size_t i,
                    std::initializer_list<float> numbers) {
  const auto finite = [](float number) { return std::isfinite(number); };
  if (static_cast<int>(i) < run.first || std::ranges::all_of(numbers, finite)) return;
  throw std::invalid_argument(
      fmt::format("[sampler] steps is {}: with the settings in {} call {} of the model leads to no "
                  "finite value: ask for another number of steps, or choose another sampler",
                  run.num_steps, config.file, i + 1));
}

}  // namespace troupe::models
