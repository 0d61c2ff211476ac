#pragma once
#include <vector>

#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Cumulative products of 1 - beta over the training steps. `keep_last_positive` puts 2^-24 where
/// zero terminal SNR would leave 0, so that sigmas stay finite.
std::vector<float> alphas_cumprod(const spec::SchedulerConfig& config, bool keep_last_positive);

/// Noise over signal, sqrt((1 - a) / a), of each training step: ascending with time.
std::vector<float> training_sigmas(const std::vector<float>& alphas_cumprod);

}  // namespace troupe::models
