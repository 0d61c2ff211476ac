#pragma once

// What the CUDA sources use of the language, for a C++ compiler: as cuda_to_cpp.py leaves them,
// launches and __shared__ are C++ already.

#include <cuda_runtime_api.h>
#include <math.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "tests/gpu/stand_in/grid.h"

#define __global__
#define __device__

using dim3 = troupe::cuda_stand_in::Index;
inline const dim3& threadIdx = troupe::cuda_stand_in::place.thread;
inline const dim3& blockIdx = troupe::cuda_stand_in::place.block;
inline const dim3& blockDim = troupe::cuda_stand_in::place.block_size;
inline const dim3& gridDim = troupe::cuda_stand_in::place.grid_size;

inline cudaError_t cudaGetLastError() {
  return troupe::cuda_stand_in::take_last_error();
}

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  troupe::cuda_stand_in::wait_for({troupe::cuda_stand_in::Wait::kBlock, 0, where});
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       std::source_location where = std::source_location::current()) {
  troupe::cuda_stand_in::wait_for({troupe::cuda_stand_in::Wait::kWarp, mask, where});
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int step,
                  std::source_location where = std::source_location::current()) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8);
  T theirs;
  troupe::cuda_stand_in::exchange({troupe::cuda_stand_in::Wait::kShuffle, mask, where},
                                  static_cast<unsigned>(step), &value, &theirs, sizeof(T));
  return theirs;
}

// Of one type, as where CUDA has no conversion to choose.
template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
using std::isnan;
