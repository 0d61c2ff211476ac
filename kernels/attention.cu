#include <cmath>

#include "kernels/cuda_device.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

struct Strides {
  std::int64_t batch, row, head;
};

/// The place of the item-th head of all, [batch, rows, heads].
__device__ std::int64_t offset_of(std::int64_t item, std::int64_t rows, std::int64_t heads,
                                  const Strides& strides) {
  return item / (rows * heads) * strides.batch + item / heads % rows * strides.row +
         item % heads * strides.head;
}

/// Uses one warp per head of a row.
template <typename T>
__global__ void norm_rotate_heads(T* x, Strides strides, const T* weight, const float* cosine,
                                  const float* sine, std::int64_t items, std::int64_t rows,
                                  std::int64_t heads, int width, float eps) {
  const int lane = threadIdx.x % 32;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= items) return;
  T* head = x + offset_of(item, rows, heads, strides);
  const std::int64_t row = item / heads % rows;
  float factor = 1;
  if (weight) {
    float squares = 0;
    for (int i = lane; i < width; i += 32) {
      const float value = static_cast<float>(head[i]);
      squares += value * value;
    }
    factor = rsqrtf(warp_sum(squares) / width + eps);
  }
  const auto normal = [&](int i) {
    const float value = static_cast<float>(head[i]) * factor;
    return weight ? value * static_cast<float>(weight[i]) : value;
  };
  if (!cosine) {
    for (int i = lane; i < width; i += 32)
      head[i] = static_cast<T>(normal(i));
    return;
  }
  for (int pair = lane; pair < width / 2; pair += 32) {
    const float c = cosine[row * (width / 2) + pair], s = sine[row * (width / 2) + pair];
    const float a = normal(2 * pair), b = normal(2 * pair + 1);
    head[2 * pair] = static_cast<T>(a * c - b * s);
    head[2 * pair + 1] = static_cast<T>(b * c + a * s);
  }
}

template <typename T>
__global__ void extrapolate_heads(T* out, Strides to, const T* x, Strides from, const T* older,
                                  Strides before, const float* alpha, int side, std::int64_t items,
                                  std::int64_t rows, std::int64_t heads, int width) {
  const int lane = threadIdx.x % 32;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= items) return;
  const float factor = alpha[item / (rows * heads) * 2 + side];
  T* target = out + offset_of(item, rows, heads, to);
  const T* newest = x + offset_of(item, rows, heads, from);
  const T* second = older + offset_of(item, rows, heads, before);
  for (int i = lane; i < width; i += 32) {
    const float value = static_cast<float>(newest[i]);
    target[i] = static_cast<T>(value + factor * (value - static_cast<float>(second[i])));
  }
}

/// Uses one warp per row. A side without keys has −inf for its sum and is ignored.
template <typename T, typename Other>
__global__ void merge_rows(T* out, float* sums, const Other* other, const float* other_sums,
                           std::int64_t rows, int width) {
  const int lane = threadIdx.x % 32;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const float own = sums[row], theirs = other_sums[row];
  const float top = fmaxf(own, theirs);
  const bool empty = own == -INFINITY && theirs == -INFINITY;  // fmaxf drops a NaN
  const float own_weight = empty ? 0.0f : expf(own - top);
  const float their_weight = empty ? 0.0f : expf(theirs - top);
  const float total = own_weight + their_weight;
  const float own_share = empty ? 0.0f : own_weight / total;
  const float their_share = empty ? 0.0f : their_weight / total;
  for (int i = lane; i < width; i += 32) {
    T& target = out[row * width + i];
    float value = 0;
    if (own_weight != 0) value += own_share * static_cast<float>(target);
    if (their_weight != 0) value += their_share * static_cast<float>(other[row * width + i]);
    target = static_cast<T>(value);
  }
  __syncwarp();
  if (lane == 0) sums[row] = empty ? -INFINITY : top + logf(total);
}

template <typename T, typename Other>
int launch_merge(void* out, float* sums, const void* other, const float* other_sums,
                 std::int64_t rows, std::int64_t width, void* stream) {
  const auto blocks = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
  merge_rows<T, Other><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<T*>(out), sums, static_cast<const Other*>(other), other_sums, rows,
      static_cast<int>(width));
  return cudaGetLastError();
}

Strides strides_of(const CudaHeads& heads) {
  return {heads.batch_stride, heads.row_stride, heads.head_stride};
}

template <typename T>
T* data_of(const CudaHeads& heads) {
  return static_cast<T*>(const_cast<void*>(heads.data));
}

}  // namespace

int norm_rotate(CudaDtype dtype, CudaHeads x, const void* weight, const float* cosine,
                const float* sine, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                std::int64_t width, float eps, void* stream) {
  const std::int64_t items = batch * rows * heads;
  if (items * width == 0) return cudaSuccess;
  return with_type(dtype, [&](auto* type) -> int {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto blocks = static_cast<unsigned>((items + kWarps - 1) / kWarps);
    norm_rotate_heads<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        data_of<T>(x), strides_of(x), static_cast<const T*>(weight), cosine, sine, items, rows,
        heads, static_cast<int>(width), eps);
    return cudaGetLastError();
  });
}

int extrapolate(CudaDtype dtype, CudaHeads out, CudaHeads x, CudaHeads older, const float* alpha,
                std::int32_t side, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                std::int64_t width, void* stream) {
  const std::int64_t items = batch * rows * heads;
  if (items * width == 0) return cudaSuccess;
  return with_type(dtype, [&](auto* type) -> int {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto blocks = static_cast<unsigned>((items + kWarps - 1) / kWarps);
    extrapolate_heads<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        data_of<T>(out), strides_of(out), data_of<T>(x), strides_of(x), data_of<T>(older),
        strides_of(older), alpha, side, items, rows, heads, static_cast<int>(width));
    return cudaGetLastError();
  });
}

int merge_attention(CudaDtype dtype, void* out, float* sums, CudaDtype other_dtype,
                    const void* other, const float* other_sums, std::int64_t rows,
                    std::int64_t width, void* stream) {
  if (rows * width == 0) return cudaSuccess;
  return with_type(other_dtype, [&](auto* type) -> int {
    using Other = std::remove_pointer_t<decltype(type)>;
    if (dtype == CudaDtype::kFloat32)
      return launch_merge<float, Other>(out, sums, other, other_sums, rows, width, stream);
    if (dtype == other_dtype)
      return launch_merge<Other, Other>(out, sums, other, other_sums, rows, width, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace troupe::kernels::cuda
