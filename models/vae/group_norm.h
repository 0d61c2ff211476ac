#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::models::vae {

/// Group norm over a CPU tensor [1, C, h, w] laid out channels-last, float32, bfloat16 or float16;
/// `weight` and `bias` [C] of the same dtype. Moments are summed about a value of the channel
/// itself, in blocks, then in float64: ATen's channels-last kernel subtracts squared float32 sums
/// and loses four digits where the mean is thirty deviations. The result does not depend on the
/// threads.
at::Tensor group_norm_channels_last(const at::Tensor& x, std::int64_t groups,
                                    const at::Tensor& weight, const at::Tensor& bias,
                                    double epsilon);

}  // namespace troupe::models::vae
