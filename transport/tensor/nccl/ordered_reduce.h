#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace troupe::tensor::nccl {

enum class ReducedType { kFloat32, kFloat64, kFloat16, kBFloat16 };

/// Computes out[i] = parts[0][i] + parts[1][i] + … in this order, accumulated in float32 for the
/// 16-bit types; or their largest, where NaN wins. parts [ranks, count], contiguous; out may be one
/// of its rows. Returns a cudaError_t.
cudaError_t ordered_reduce(ReducedType type, bool largest, const void* parts, int ranks,
                           std::int64_t count, void* out, cudaStream_t stream);

}  // namespace troupe::tensor::nccl
