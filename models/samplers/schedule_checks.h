#pragma once
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "models/samplers/sampler_run.h"

namespace troupe::models {

/// Returns the times that the model is given in a run, those that it leaves out included. Refuses
/// what model_calls does. Those of a plugin's sampler are not known: zeros.
std::vector<double> scheduled_times(const spec::SchedulerConfig& config, const SamplerRun& run);

/// Number of calls of the model in a run, those that it leaves out included: PNDM visits its second
/// time twice or begins with rounds of Runge-Kutta, and clipped lambdas may leave fewer than were
/// asked for; all others call the model once a step. Refuses a run whose steps the sampler cannot
/// compute (std::invalid_argument). A plugin's sampler is not looked at.
int model_calls(const spec::SchedulerConfig& config, const SamplerRun& run);

/// Refuses a schedule (std::invalid_argument) whose step `i` divides by nothing: one of its numbers
/// is not finite. Steps that the run leaves out are not looked at.
void require_finite(const spec::SchedulerConfig& config, const SamplerRun& run, std::size_t i,
                    std::initializer_list<float> numbers);

}  // namespace troupe::models
