#pragma once
#include <ATen/core/Tensor.h>

#include "models/spec/scheduler_config.h"

namespace troupe::models {

/// Dynamic thresholding (arXiv 2205.11487) of a predicted clean sample [B, C, h, w]: per picture,
/// the `ratio` quantile of absolute values, held within [1, max_value], becomes the new 1.
at::Tensor threshold_sample(const at::Tensor& sample, double ratio, double max_value);

/// The clean sample that a model's output points at, where the sample is root_alpha · clean +
/// root_beta · noise.
at::Tensor clean_sample(spec::PredictionType predicts, const at::Tensor& out,
                        const at::Tensor& sample, double root_alpha, double root_beta);

/// A clean sample within the configuration's bounds: thresholded, clipped, or as it is.
at::Tensor limit_sample(const spec::SchedulerConfig& config, const at::Tensor& clean);

/// The part of a model's output [B, C or 2C, h, w] that predicts the sample's channels. A doubled
/// output is taken only if `learned_variance`. Throws std::invalid_argument naming both shapes.
at::Tensor mean_part(const at::Tensor& model_output, const at::Tensor& sample,
                     bool learned_variance);

}  // namespace troupe::models
