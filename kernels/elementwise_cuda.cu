#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda_library.h"

namespace {

using troupe::kernels::CudaDtype;
using troupe::kernels::CudaKernels;

constexpr int kThreads = 256;

__device__ float block_sum(float value) {
  __shared__ float partial[kThreads / 32];
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int i = 0; i < kThreads / 32; ++i)
    value += partial[i];
  return value;
}

template <typename T>
__global__ void norm_modulate_row(const T* x, const T* scale, const T* shift, T* out,
                                  std::int64_t rows, int width, float eps) {
  const std::int64_t row = blockIdx.x;
  const T* from = x + row * width;
  T* to = out + row * width;
  const T* row_scale = scale + row / rows * width;
  const T* row_shift = shift + row / rows * width;
  float total = 0;
  for (int j = threadIdx.x; j < width; j += kThreads)
    total += static_cast<float>(from[j]);
  const float mean = block_sum(total) / width;
  float squares = 0;
  for (int j = threadIdx.x; j < width; j += kThreads) {
    const float d = static_cast<float>(from[j]) - mean;
    squares += d * d;
  }
  const float factor = rsqrtf(block_sum(squares) / width + eps);
  for (int j = threadIdx.x; j < width; j += kThreads) {
    const float normal = (static_cast<float>(from[j]) - mean) * factor;
    to[j] = static_cast<T>(normal * (1.0f + static_cast<float>(row_scale[j])) +
                           static_cast<float>(row_shift[j]));
  }
}

template <typename T>
__global__ void gate_residual_items(T* residual, const T* x, const T* gate, std::int64_t count,
                                    std::int64_t per_batch, int width) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const float factor = static_cast<float>(gate[i / per_batch * width + i % width]);
    residual[i] =
        static_cast<T>(static_cast<float>(residual[i]) + factor * static_cast<float>(x[i]));
  }
}

template <typename T>
void launch_norm(const void* x, const void* scale, const void* shift, void* out, std::int64_t batch,
                 std::int64_t rows, std::int64_t width, float eps, cudaStream_t stream) {
  norm_modulate_row<T><<<static_cast<unsigned>(batch * rows), kThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<const T*>(scale), static_cast<const T*>(shift),
      static_cast<T*>(out), rows, static_cast<int>(width), eps);
}

template <typename T>
void launch_gate(void* residual, const void* x, const void* gate, std::int64_t batch,
                 std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  const std::int64_t count = batch * rows * width;
  const std::int64_t blocks = (count + kThreads * 4 - 1) / (kThreads * 4);
  gate_residual_items<T>
      <<<static_cast<unsigned>(blocks < 65535 ? blocks : 65535), kThreads, 0, stream>>>(
          static_cast<T*>(residual), static_cast<const T*>(x), static_cast<const T*>(gate), count,
          rows * width, static_cast<int>(width));
}

int norm_modulate(CudaDtype dtype, const void* x, const void* scale, const void* shift, void* out,
                  std::int64_t batch, std::int64_t rows, std::int64_t width, float eps,
                  void* stream_pointer) {
  if (batch * rows * width == 0) return cudaSuccess;
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  switch (dtype) {
    case CudaDtype::kFloat32:
      launch_norm<float>(x, scale, shift, out, batch, rows, width, eps, stream);
      break;
    case CudaDtype::kBFloat16:
      launch_norm<__nv_bfloat16>(x, scale, shift, out, batch, rows, width, eps, stream);
      break;
    case CudaDtype::kFloat16:
      launch_norm<__half>(x, scale, shift, out, batch, rows, width, eps, stream);
      break;
  }
  return cudaGetLastError();
}

int gate_residual(CudaDtype dtype, void* residual, const void* x, const void* gate,
                  std::int64_t batch, std::int64_t rows, std::int64_t width, void* stream_pointer) {
  if (batch * rows * width == 0) return cudaSuccess;
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  switch (dtype) {
    case CudaDtype::kFloat32:
      launch_gate<float>(residual, x, gate, batch, rows, width, stream);
      break;
    case CudaDtype::kBFloat16:
      launch_gate<__nv_bfloat16>(residual, x, gate, batch, rows, width, stream);
      break;
    case CudaDtype::kFloat16:
      launch_gate<__half>(residual, x, gate, batch, rows, width, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace

extern "C" const CudaKernels* troupe_cuda_kernels() {
  static const CudaKernels kernels = {troupe::kernels::kCudaKernelsVersion, norm_modulate,
                                      gate_residual};
  return &kernels;
}
