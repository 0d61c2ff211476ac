#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "transport/tensor/nccl/ordered_reduce.h"

namespace troupe::tensor::nccl {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1024;

template <typename T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};

template <typename T, bool largest>
__global__ void reduce_parts(const T* parts, int ranks, std::int64_t count, T* out) {
  using A = typename Accumulator<T>::Type;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    A value = static_cast<A>(parts[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const A next = static_cast<A>(parts[rank * count + i]);
      if constexpr (largest)
        value = value > next || isnan(value) ? value : next;
      else
        value += next;
    }
    out[i] = static_cast<T>(value);
  }
}

template <typename T>
cudaError_t launch(bool largest, const void* parts, int ranks, std::int64_t count, void* out,
                   cudaStream_t stream) {
  const std::int64_t wanted = (count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  if (largest)
    reduce_parts<T, true><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(parts), ranks,
                                                           count, static_cast<T*>(out));
  else
    reduce_parts<T, false><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(parts), ranks,
                                                            count, static_cast<T*>(out));
  return cudaGetLastError();
}

}  // namespace

cudaError_t ordered_reduce(ReducedType type, bool largest, const void* parts, int ranks,
                           std::int64_t count, void* out, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (type) {
    case ReducedType::kFloat32:
      return launch<float>(largest, parts, ranks, count, out, stream);
    case ReducedType::kFloat64:
      return launch<double>(largest, parts, ranks, count, out, stream);
    case ReducedType::kFloat16:
      return launch<__half>(largest, parts, ranks, count, out, stream);
    case ReducedType::kBFloat16:
      return launch<__nv_bfloat16>(largest, parts, ranks, count, out, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace troupe::tensor::nccl
