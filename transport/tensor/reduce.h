#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "transport/tensor/group.h"

namespace troupe::tensor {

/// True if `reduce_in_order` knows the type: the real numbers, Half and BFloat16 included.
bool is_reducible(at::ScalarType type);

/// Computes out[i] = parts[0][i] op parts[1][i] op …, from left to right, on the calling thread
/// alone. Half and BFloat16 are accumulated in float32 and rounded once; max passes NaN on. `out`
/// may be one of the parts. All point to `count` elements of `type`.
void reduce_in_order(void* out, const std::vector<const void*>& parts, std::int64_t count,
                     at::ScalarType type, ReduceOp op);

}  // namespace troupe::tensor
