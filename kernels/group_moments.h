#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// Mean and biased variance of each of `groups` runs of channels: x [1, C, h, w], contiguous or
/// channels last → [2, groups] float64 on x's device. Summed about a value of the group, so that a
/// mean of many deviations costs no digits. Own code for CUDA, ATen in float64 elsewhere. Throws
/// std::invalid_argument where x has another shape or C is not a multiple of groups.
at::Tensor group_moments(const at::Tensor& x, int64_t groups);

}  // namespace troupe::kernels
