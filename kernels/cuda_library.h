#pragma once

#include <cstdint>
#include <string>

/// The fused CUDA kernels live in a library of their own, `libtroupe_kernels_cuda.so`, opened when
/// the first CUDA tensor arrives: builds and machines without CUDA never link it.

namespace troupe::kernels {

/// Opens one of our own libraries that need CUDA: at the path that the environment variable
/// `variable` names, else on the loader's path, else in `../lib` beside the program. Null where it
/// is nowhere, or something that it needs is missing; `why` then says what the loader said.
void* open_plugin(const std::string& file, const char* variable, std::string* why = nullptr);

enum class CudaDtype : std::int32_t { kFloat32, kBFloat16, kFloat16 };

/// Rows of [B, n, H, d] whose last dimension is contiguous; the strides are in elements.
struct CudaHeads {
  const void* data;
  std::int64_t batch_stride, row_stride, head_stride;
};

/// kv_push: versions [n, B, 2, H, d], contiguous, newest first, of which `shifts` move back by one;
/// fresh likewise with strides of row, batch, K or V, and head. sums [B, 2, 2] or null; where they
/// are asked for, `partial` has room for cuda_push_blocks() × B × 2 × 2 numbers.
struct CudaPush {
  CudaDtype dtype;
  void* versions[3];
  std::int32_t shifts;
  const void* fresh;
  std::int64_t strides[4];
  std::int64_t rows, batch, heads, width;
  double* sums;
  double* partial;
};

/// Thread blocks along the rows; as many partial sums are added up in order.
constexpr std::int64_t kCudaPushRows = 4;
constexpr std::int64_t cuda_push_blocks(std::int64_t rows) {
  return (rows + kCudaPushRows - 1) / kCudaPushRows;
}
/// Thread blocks of a group in group_moments.
constexpr std::int64_t kCudaMomentBlocks = 32;

/// Functions that the library exports through `troupe_cuda_kernels`. Pointers are device pointers;
/// `stream` is a cudaStream_t. Each function returns a cudaError_t, 0 if the launch went well.
/// Everything is computed in float32, sums of many in float64, always in the same order.
struct CudaKernels {
  std::int32_t version;
  /// Rows are contiguous, [batch, rows, width]; scale and shift [batch, width].
  int (*norm_modulate)(CudaDtype dtype, const void* x, const void* scale, const void* shift,
                       void* out, std::int64_t batch, std::int64_t rows, std::int64_t width,
                       float eps, void* stream);
  /// residual += gate · (y + bias); gate [batch, width] and bias [width] may be null.
  int (*add_rows)(CudaDtype dtype, void* residual, const void* y, const void* gate,
                  const void* bias, std::int64_t batch, std::int64_t rows, std::int64_t width,
                  void* stream);
  /// x in place: over d the root-mean-square norm times weight [d] (null: no norm), then pairs
  /// (2i, 2i + 1) turned by cos and sin [n, d / 2] float32 (null: not turned).
  int (*norm_rotate)(CudaDtype dtype, CudaHeads x, const void* weight, const float* cosine,
                     const float* sine, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                     std::int64_t width, float eps, void* stream);
  int (*kv_push)(const CudaPush& push, void* stream);
  /// Computes out = x + alpha[b, side] · (x − older); alpha [B, 2] float32.
  int (*extrapolate)(CudaDtype dtype, CudaHeads out, CudaHeads x, CudaHeads older,
                     const float* alpha, std::int32_t side, std::int64_t batch, std::int64_t rows,
                     std::int64_t heads, std::int64_t width, void* stream);
  /// `rows` queries of one head each, [rows, width] with sums [rows]; `out` is of other's type or
  /// float32.
  int (*merge_attention)(CudaDtype dtype, void* out, float* sums, CudaDtype other_dtype,
                         const void* other, const float* other_sums, std::int64_t rows,
                         std::int64_t width, void* stream);
  /// Mean and biased variance [2, groups] of x [channels, pixels], or [pixels, channels] with
  /// channels_last; `partial` has room for groups × kCudaMomentBlocks × 2 numbers.
  int (*group_moments)(CudaDtype dtype, const void* x, bool channels_last, std::int64_t channels,
                       std::int64_t pixels, std::int64_t groups, double* partial, double* moments,
                       void* stream);
};

inline constexpr std::int32_t kCudaKernelsVersion = 2;

/// The kernels, or null where the library is not beside the program, on the loader's path, or at
/// `TROUPE_KERNELS_CUDA`. Looked for once.
const CudaKernels* cuda_kernels();

}  // namespace troupe::kernels
