#pragma once

#include <cstdint>

/// The fused CUDA kernels live in a library of their own, `libtroupe_kernels_cuda.so`, opened when
/// the first CUDA tensor arrives: builds and machines without CUDA never link it.
namespace troupe::kernels {

enum class CudaDtype : std::int32_t { kFloat32, kBFloat16, kFloat16 };

/// What the library exports through `troupe_cuda_kernels`. Pointers are device pointers, rows are
/// contiguous, [batch, rows, width]; scale, shift and gate [batch, width]; `stream` is a
/// cudaStream_t. Each returns a cudaError_t, 0 where the launch went well.
struct CudaKernels {
  std::int32_t version;
  int (*norm_modulate)(CudaDtype dtype, const void* x, const void* scale, const void* shift,
                       void* out, std::int64_t batch, std::int64_t rows, std::int64_t width,
                       float eps, void* stream);
  int (*gate_residual)(CudaDtype dtype, void* residual, const void* x, const void* gate,
                       std::int64_t batch, std::int64_t rows, std::int64_t width, void* stream);
};

inline constexpr std::int32_t kCudaKernelsVersion = 1;

/// The kernels, or null where the library is not beside the program, on the loader's path, or at
/// `TROUPE_KERNELS_CUDA`. Looked for once.
const CudaKernels* cuda_kernels();

}  // namespace troupe::kernels
