#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda_library.h"

/// Code that the CUDA sources share. The launchers are gathered in `cuda_library.cu`.
namespace troupe::kernels::cuda {

inline constexpr int kThreads = 256;

/// Calls f with a null pointer of the type that `dtype` names.
template <typename F>
int with_type(CudaDtype dtype, F&& f) {
  switch (dtype) {
    case CudaDtype::kFloat32:
      return f(static_cast<float*>(nullptr));
    case CudaDtype::kBFloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case CudaDtype::kFloat16:
      return f(static_cast<__half*>(nullptr));
  }
  return cudaErrorInvalidValue;
}

/// N neighbouring values, moved at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <typename T>
inline constexpr int kPackWidth = 16 / sizeof(T);

inline bool on_pack(const void* data, std::size_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

template <typename V>
__device__ V warp_sum(V value) {
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

/// The same sum for every thread of a block of kThreads.
template <typename V>
__device__ V block_sum(V value) {
  __shared__ V partial[kThreads / 32];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int i = 0; i < kThreads / 32; ++i)
    value += partial[i];
  return value;
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block, std::int64_t most = 65535) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

int norm_modulate(CudaDtype, const void*, const void*, const void*, void*, std::int64_t,
                  std::int64_t, std::int64_t, float, void*);
int add_rows(CudaDtype, void*, const void*, const void*, const void*, std::int64_t, std::int64_t,
             std::int64_t, void*);
int norm_rotate(CudaDtype, CudaHeads, const void*, const float*, const float*, std::int64_t,
                std::int64_t, std::int64_t, std::int64_t, float, void*);
int kv_push(const CudaPush&, void*);
int extrapolate(CudaDtype, CudaHeads, CudaHeads, CudaHeads, const float*, std::int32_t,
                std::int64_t, std::int64_t, std::int64_t, std::int64_t, void*);
int merge_attention(CudaDtype, void*, float*, CudaDtype, const void*, const float*, std::int64_t,
                    std::int64_t, void*);
int group_moments(CudaDtype, const void*, bool, std::int64_t, std::int64_t, std::int64_t, double*,
                  double*, void*);

}  // namespace troupe::kernels::cuda
