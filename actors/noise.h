#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::actors {

/// Unit-variance noise of a whole batch [n, C, h, w], float32, drawn at once from torch's CPU
/// generator as diffusers does, so that a seed means the same picture there and here. `draw_type`
/// is float32, or the compute type when the request asks for the noise that a half-precision
/// pipeline of diffusers would draw.
at::Tensor draw_noise(std::uint64_t seed, at::IntArrayRef shape, at::ScalarType draw_type);

}  // namespace troupe::actors
