#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"
#include "kernels/cuda_library.h"

/// Tensors to the table of CUDA kernels, on the current stream of their device. Shapes have been
/// checked by the callers.
namespace troupe::kernels {

/// The table where `x` is on a GPU in a type that it has, and the library is there; else null.
const CudaKernels* cuda_kernels_for(const at::Tensor& x);

at::Tensor norm_modulate_cuda(const CudaKernels& cuda, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& shift, double eps);
/// gate and bias may be undefined; residual is contiguous.
void add_rows_cuda(const CudaKernels& cuda, at::Tensor& residual, const at::Tensor& y,
                   const at::Tensor& gate, const at::Tensor& bias);
void norm_rotate_cuda(const CudaKernels& cuda, at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& cosine, const at::Tensor& sine, double eps);
/// sums may be undefined.
void kv_push_cuda(const CudaKernels& cuda, const std::vector<at::Tensor>& versions,
                  const at::Tensor& fresh, int shifts, const at::Tensor& sums);
/// Computes out ← x + alpha[:, side] · (x − older), all [B, n, H, d]; alpha [B, 2].
void extrapolate_cuda(const CudaKernels& cuda, const at::Tensor& out, const at::Tensor& x,
                      const at::Tensor& older, const at::Tensor& alpha, int side);
/// Merges `other` into `into`, which is contiguous, and float32 or of other's type.
void merge_attention_cuda(const CudaKernels& cuda, PartialAttention& into,
                          const PartialAttention& other);
/// Returns the moments of the groups, [2, groups] float64.
at::Tensor group_moments_cuda(const CudaKernels& cuda, const at::Tensor& x, int64_t groups);

}  // namespace troupe::kernels
