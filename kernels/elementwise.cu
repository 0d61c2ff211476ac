#include "kernels/cuda_device.cuh"

namespace troupe::kernels::cuda {
namespace {

template <typename T, int N>
__global__ void norm_modulate_row(const T* x, const T* scale, const T* shift, T* out,
                                  std::int64_t rows, int width, float eps) {
  using P = Pack<T, N>;
  const std::int64_t row = blockIdx.x;
  const int packs = width / N;
  const P* from = reinterpret_cast<const P*>(x + row * width);
  P* to = reinterpret_cast<P*>(out + row * width);
  const P* row_scale = reinterpret_cast<const P*>(scale + row / rows * width);
  const P* row_shift = reinterpret_cast<const P*>(shift + row / rows * width);
  float total = 0;
  for (int j = threadIdx.x; j < packs; j += kThreads) {
    const P pack = from[j];
    for (int i = 0; i < N; ++i)
      total += static_cast<float>(pack.at[i]);
  }
  const float mean = block_sum(total) / width;
  float squares = 0;
  for (int j = threadIdx.x; j < packs; j += kThreads) {
    const P pack = from[j];
    for (int i = 0; i < N; ++i) {
      const float apart = static_cast<float>(pack.at[i]) - mean;
      squares += apart * apart;
    }
  }
  const float factor = rsqrtf(block_sum(squares) / width + eps);
  for (int j = threadIdx.x; j < packs; j += kThreads) {
    P pack = from[j];
    const P scales = row_scale[j], shifts = row_shift[j];
    for (int i = 0; i < N; ++i) {
      const float normal = (static_cast<float>(pack.at[i]) - mean) * factor;
      pack.at[i] = static_cast<T>(normal * (1.0f + static_cast<float>(scales.at[i])) +
                                  static_cast<float>(shifts.at[i]));
    }
    to[j] = pack;
  }
}

template <typename T, int N>
__global__ void add_rows_items(T* residual, const T* y, const T* gate, const T* bias,
                               std::int64_t packs, std::int64_t per_batch, int per_row) {
  using P = Pack<T, N>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += step) {
    const std::int64_t column = i % per_row;
    P sum = reinterpret_cast<P*>(residual)[i];
    const P values = reinterpret_cast<const P*>(y)[i];
    P gates{}, biases{};
    if (gate) gates = reinterpret_cast<const P*>(gate)[i / per_batch * per_row + column];
    if (bias) biases = reinterpret_cast<const P*>(bias)[column];
    for (int j = 0; j < N; ++j) {
      float value = static_cast<float>(values.at[j]);
      if (bias) value += static_cast<float>(biases.at[j]);
      if (gate) value *= static_cast<float>(gates.at[j]);
      sum.at[j] = static_cast<T>(static_cast<float>(sum.at[j]) + value);
    }
    reinterpret_cast<P*>(residual)[i] = sum;
  }
}

template <typename T, int N>
void launch_add(void* residual, const void* y, const void* gate, const void* bias,
                std::int64_t batch, std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  const std::int64_t packs = batch * rows * width / N;
  add_rows_items<T, N><<<blocks_for(packs, kThreads), kThreads, 0, stream>>>(
      static_cast<T*>(residual), static_cast<const T*>(y), static_cast<const T*>(gate),
      static_cast<const T*>(bias), packs, rows * width / N, static_cast<int>(width / N));
}

}  // namespace

int norm_modulate(CudaDtype dtype, const void* x, const void* scale, const void* shift, void* out,
                  std::int64_t batch, std::int64_t rows, std::int64_t width, float eps,
                  void* stream) {
  if (batch * rows * width == 0) return cudaSuccess;
  return with_type(dtype, [&](auto* type) -> int {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool packed = width % kPackWidth<T> == 0 && on_pack(x) && on_pack(scale) &&
                        on_pack(shift) && on_pack(out);
    const auto kernel = packed ? norm_modulate_row<T, kPackWidth<T>> : norm_modulate_row<T, 1>;
    kernel<<<static_cast<unsigned>(batch * rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(x), static_cast<const T*>(scale), static_cast<const T*>(shift),
        static_cast<T*>(out), rows, static_cast<int>(width), eps);
    return cudaGetLastError();
  });
}

int add_rows(CudaDtype dtype, void* residual, const void* y, const void* gate, const void* bias,
             std::int64_t batch, std::int64_t rows, std::int64_t width, void* stream) {
  if (batch * rows * width == 0) return cudaSuccess;
  return with_type(dtype, [&](auto* type) -> int {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool packed = width % kPackWidth<T> == 0 && on_pack(residual) && on_pack(y) &&
                        on_pack(gate) && on_pack(bias);
    const auto launch = packed ? launch_add<T, kPackWidth<T>> : launch_add<T, 1>;
    launch(residual, y, gate, bias, batch, rows, width, static_cast<cudaStream_t>(stream));
    return cudaGetLastError();
  });
}

}  // namespace troupe::kernels::cuda
