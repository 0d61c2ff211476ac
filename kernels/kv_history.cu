#include "kernels/cuda_device.cuh"

namespace troupe::kernels::cuda {
namespace {

template <typename T>
struct Rows {
  T* versions[3];
  int shifts;
  const T* fresh;
  std::int64_t row_stride, batch_stride, side_stride, head_stride;
  std::int64_t rows, batch;
  int heads, width;
  double* partial;
};

/// A block takes kCudaPushRows rows of one batch item's K or V: blockIdx.y is 2 · item + side.
template <typename T, int N>
__global__ void push_rows(Rows<T> push) {
  using P = Pack<T, N>;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kCudaPushRows;
  const std::int64_t part = blockIdx.y;
  const int packs = push.heads * push.width / N, per_head = push.width / N;
  double numerator = 0, denominator = 0;
  for (std::int64_t row = first; row < min(push.rows, first + kCudaPushRows); ++row) {
    const std::int64_t at = (row * push.batch * 2 + part) * packs;
    const T* from = push.fresh + row * push.row_stride + part / 2 * push.batch_stride +
                    part % 2 * push.side_stride;
    float over = 0, under = 0;
    for (int i = threadIdx.x; i < packs; i += kThreads) {
      const P fresh =
          *reinterpret_cast<const P*>(from + i / per_head * push.head_stride + i % per_head * N);
      if (push.shifts > 0) {
        P* newest = reinterpret_cast<P*>(push.versions[0]) + at + i;
        const P before = *newest;
        if (push.shifts > 1 || push.partial) {
          P* second = reinterpret_cast<P*>(push.versions[1]) + at + i;
          const P older = *second;
          if (push.partial) {
            for (int j = 0; j < N; ++j) {
              const float x1 = static_cast<float>(before.at[j]);
              const float step = x1 - static_cast<float>(older.at[j]);
              over += (static_cast<float>(fresh.at[j]) - x1) * step;
              under += step * step;
            }
          }
          if (push.shifts > 1) reinterpret_cast<P*>(push.versions[2])[at + i] = older;
        }
        reinterpret_cast<P*>(push.versions[1])[at + i] = before;
      }
      reinterpret_cast<P*>(push.versions[0])[at + i] = fresh;
    }
    numerator += over;
    denominator += under;
  }
  if (!push.partial) return;
  numerator = block_sum(numerator);
  denominator = block_sum(denominator);
  if (threadIdx.x == 0) {
    double* to = push.partial + (blockIdx.x * push.batch * 2 + part) * 2;
    to[0] = numerator;
    to[1] = denominator;
  }
}

/// Uses one block per sum; the order of the additions depends on the number of partial sums alone.
__global__ void add_partial(const double* partial, std::int64_t blocks, std::int64_t sums_each,
                            double* sums) {
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += kThreads)
    total += partial[i * sums_each + blockIdx.x];
  total = block_sum(total);
  if (threadIdx.x == 0) sums[blockIdx.x] += total;
}

template <typename T>
bool packable(const CudaPush& push) {
  bool good = push.width % kPackWidth<T> == 0 && on_pack(push.fresh);
  for (const std::int64_t stride : push.strides)
    good = good && stride % kPackWidth<T> == 0;
  for (int i = 0; i <= push.shifts; ++i)
    good = good && on_pack(push.versions[i]);
  return good && on_pack(push.versions[1]);
}

}  // namespace

int kv_push(const CudaPush& push, void* stream_pointer) {
  if (push.rows * push.batch * push.heads * push.width == 0) return cudaSuccess;
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  const std::int64_t blocks = cuda_push_blocks(push.rows);
  const int status = with_type(push.dtype, [&](auto* type) -> int {
    using T = std::remove_pointer_t<decltype(type)>;
    Rows<T> rows{};
    for (int i = 0; i < 3; ++i)
      rows.versions[i] = static_cast<T*>(push.versions[i]);
    rows.shifts = push.shifts;
    rows.fresh = static_cast<const T*>(push.fresh);
    rows.row_stride = push.strides[0];
    rows.batch_stride = push.strides[1];
    rows.side_stride = push.strides[2];
    rows.head_stride = push.strides[3];
    rows.rows = push.rows;
    rows.batch = push.batch;
    rows.heads = static_cast<int>(push.heads);
    rows.width = static_cast<int>(push.width);
    rows.partial = push.sums ? push.partial : nullptr;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(push.batch * 2));
    if (packable<T>(push))
      push_rows<T, kPackWidth<T>><<<grid, kThreads, 0, stream>>>(rows);
    else
      push_rows<T, 1><<<grid, kThreads, 0, stream>>>(rows);
    return cudaGetLastError();
  });
  if (status != cudaSuccess || !push.sums) return status;
  const std::int64_t sums_each = push.batch * 4;
  add_partial<<<static_cast<unsigned>(sums_each), kThreads, 0, stream>>>(push.partial, blocks,
                                                                         sums_each, push.sums);
  return cudaGetLastError();
}

}  // namespace troupe::kernels::cuda
