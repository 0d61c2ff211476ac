#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/vae/halo_port.h"

namespace troupe::models::vae {

/// Operation of a group norm on each channel once its moments are known: x · factor + addend, [C]
/// in float32 (float64 for float64).
struct ChannelAffine {
  at::Tensor factor, addend;
};

/// The group norm over all rows of the picture, of which `x` [1, C, h, w] are this shard's: exact,
/// with a biased variance. Moments are summed about a value of the channel itself, in blocks, then
/// in float64 (ATen's channels-last kernel subtracts squared float32 sums and loses four digits
/// where the mean is thirty deviations), and shards add theirs up in float64. The result does not
/// depend on the threads. `weight` and `bias` [C] have x's dtype.
ChannelAffine group_norm_affine(const at::Tensor& x, std::int64_t groups, const at::Tensor& weight,
                                const at::Tensor& bias, double epsilon, HaloPort& port);

/// x · factor + addend in x's dtype, for any rows [1, C, h, w].
at::Tensor apply_affine(const at::Tensor& x, const ChannelAffine& affine);

}  // namespace troupe::models::vae
