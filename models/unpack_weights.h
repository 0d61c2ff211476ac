#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/spec/weight_index.h"

namespace troupe::models {

/// Writes the values of stored blocks, in float32, bit for bit as gguf-py does: `values` has
/// dtype_block(dtype).elements for each block of `stored`. Takes GGUF's types of blocks and 8-bit
/// floats; throws std::invalid_argument for others. Computes on several threads.
void unpack_weights(spec::Dtype dtype, std::span<const std::byte> stored, std::span<float> values);

/// Returns whether values of the type have to be unpacked before anything is computed with them.
inline bool needs_unpacking(spec::Dtype dtype) {
  return spec::is_packed(dtype) || dtype == spec::Dtype::float8_e4m3 ||
         dtype == spec::Dtype::float8_e5m2;
}

}  // namespace troupe::models
