#pragma once
#include <ATen/core/Tensor.h>

#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Cumulative products of 1 - beta over the training steps: float32 [num_train_timesteps] on the
/// CPU. `keep_last_positive` puts 2^-24 where zero terminal SNR would leave 0, so that sigmas stay
/// finite.
at::Tensor alphas_cumprod(const spec::SchedulerConfig& config, bool keep_last_positive);

/// Noise over signal, sqrt((1 - a) / a), of each training step: float32, ascending with time.
at::Tensor training_sigmas(const at::Tensor& alphas_cumprod);

}  // namespace troupe::models
