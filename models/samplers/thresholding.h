#pragma once
#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Dynamic thresholding (arXiv 2205.11487) of a predicted clean sample [B, C, h, w]: per picture,
/// the `ratio` quantile of absolute values, held within [1, max_value], becomes the new 1.
at::Tensor threshold_sample(const at::Tensor& sample, double ratio, double max_value);

/// The part of a model's output [B, C or 2C, h, w] that predicts the sample's channels. A doubled
/// output is taken only if `learned_variance`. Throws std::invalid_argument naming both shapes.
at::Tensor mean_part(const at::Tensor& model_output, const at::Tensor& sample,
                     bool learned_variance);

}  // namespace troupe::models
