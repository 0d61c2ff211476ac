#include "kernels/cuda_device.cuh"

namespace troupe::kernels::cuda {
namespace {

template <typename T>
struct Picture {
  const T* x;
  bool channels_last;
  std::int64_t channels, pixels, width;  // width: channels of a group

  __device__ float value(std::int64_t group, std::int64_t i) const {
    const std::int64_t at = channels_last ? i / width * channels + group * width + i % width
                                          : group * width * pixels + i;
    return static_cast<float>(x[at]);
  }
};

/// Sums of x − c and its square for a share of a group, c being the group's first value: variances
/// far below the mean lose nothing.
template <typename T>
__global__ void partial_moments(Picture<T> picture, double* partial) {
  const std::int64_t group = blockIdx.y, count = picture.width * picture.pixels;
  const float about = picture.value(group, 0);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  double sum = 0, square = 0;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  while (i < count) {
    float near_sum = 0, near_square = 0;
    for (int j = 0; j < 16 && i < count; ++j, i += step) {
      const float apart = picture.value(group, i) - about;
      near_sum += apart;
      near_square += apart * apart;
    }
    sum += near_sum;
    square += near_square;
  }
  sum = block_sum(sum);
  square = block_sum(square);
  if (threadIdx.x == 0) {
    double* to = partial + (group * gridDim.x + blockIdx.x) * 2;
    to[0] = sum;
    to[1] = square;
  }
}

template <typename T>
__global__ void join_moments(Picture<T> picture, const double* partial, std::int64_t groups,
                             double* moments) {
  const std::int64_t group = blockIdx.x;
  double sum = 0, square = 0;
  for (int i = 0; i < kCudaMomentBlocks; ++i) {
    sum += partial[(group * kCudaMomentBlocks + i) * 2];
    square += partial[(group * kCudaMomentBlocks + i) * 2 + 1];
  }
  const double count = static_cast<double>(picture.width * picture.pixels);
  const double apart = sum / count;
  moments[group] = static_cast<double>(picture.value(group, 0)) + apart;
  const double variance = square / count - apart * apart;
  moments[groups + group] = variance < 0 ? 0 : variance;  // fmax drops a NaN
}

}  // namespace

int group_moments(CudaDtype dtype, const void* x, bool channels_last, std::int64_t channels,
                  std::int64_t pixels, std::int64_t groups, double* partial, double* moments,
                  void* stream_pointer) {
  if (channels * pixels == 0) return cudaSuccess;
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  return with_type(dtype, [&](auto* type) -> int {
    using T = std::remove_pointer_t<decltype(type)>;
    const Picture<T> picture{static_cast<const T*>(x), channels_last, channels, pixels,
                             channels / groups};
    const dim3 grid(static_cast<unsigned>(kCudaMomentBlocks), static_cast<unsigned>(groups));
    partial_moments<T><<<grid, kThreads, 0, stream>>>(picture, partial);
    join_moments<T>
        <<<static_cast<unsigned>(groups), 1, 0, stream>>>(picture, partial, groups, moments);
    return cudaGetLastError();
  });
}

}  // namespace troupe::kernels::cuda
