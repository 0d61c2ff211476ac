#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda_calls.h"

/// The CUDA kernels as tests call them: behind the public functions on a GPU; or, with
/// TROUPE_CUDA_STAND_IN, made C++ and run thread by thread on the CPU (tests/gpu/stand_in), with
/// tensors of the CPU in what stands for a GPU's memory.
#ifdef TROUPE_CUDA_STAND_IN

namespace troupe::testing {

/// Returns a copy that kernels may be given.
at::Tensor on_gpu(const at::Tensor& x, at::ScalarType type);
inline void* gpu_stream() {
  return nullptr;
}

/// Functions with the meaning of their namesakes in `kernels`.
namespace gpu_kernels {

const kernels::CudaKernels* cuda_kernels();
const kernels::CudaKernels* cuda_kernels_for(const at::Tensor& x);
at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps);
void add(at::Tensor& residual, const at::Tensor& y, const at::Tensor& bias);
void add_gated(at::Tensor& residual, const at::Tensor& y, const at::Tensor& gate,
               const at::Tensor& bias);
void norm_rotate(at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                 const at::Tensor& sine, double eps);
void kv_push(const std::vector<at::Tensor>& versions, const at::Tensor& fresh, int known,
             const std::optional<at::Tensor>& sums);
void extrapolate_cuda(const kernels::CudaKernels& cuda, const at::Tensor& out, const at::Tensor& x,
                      const at::Tensor& older, const at::Tensor& alpha, int side);
void merge_attention(kernels::PartialAttention& into, const kernels::PartialAttention& other);
at::Tensor group_moments(const at::Tensor& x, int64_t groups);

}  // namespace gpu_kernels
}  // namespace troupe::testing

#define TROUPE_NEEDS_GPU_KERNELS() static_cast<void>(0)

#else

#include <c10/core/impl/VirtualGuardImpl.h>

#include "kernels/elementwise.h"
#include "kernels/group_moments.h"
#include "kernels/kv_history.h"
#include "tests/gpu/gpu.h"

namespace troupe::testing {

namespace gpu_kernels = kernels;

inline at::Tensor on_gpu(const at::Tensor& x, at::ScalarType type) {
  return x.to(*gpu(), type);
}
inline void* gpu_stream() {
  return c10::impl::VirtualGuardImpl(gpu()->type()).getStream(*gpu()).native_handle();
}

}  // namespace troupe::testing

/// First in a test case: leaves it, saying so, where there is no GPU.
#define TROUPE_NEEDS_GPU_KERNELS() TROUPE_NEEDS_GPU()

#endif
