#include "kernels/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace troupe::kernels {

namespace {

const CudaKernels* open_library() {
  const char* chosen = std::getenv("TROUPE_KERNELS_CUDA");
  void* library = dlopen(chosen ? chosen : "libtroupe_kernels_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (!library && !chosen) {
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&cuda_kernels), &here) && here.dli_fname) {
      const std::string program = here.dli_fname;
      const std::string folder = program.substr(0, program.find_last_of('/') + 1);
      library =
          dlopen((folder + "../lib/libtroupe_kernels_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
  if (!library) return nullptr;
  auto entry = reinterpret_cast<const CudaKernels* (*)()>(dlsym(library, "troupe_cuda_kernels"));
  if (!entry) return nullptr;
  const CudaKernels* kernels = entry();
  return kernels && kernels->version == kCudaKernelsVersion ? kernels : nullptr;
}

CudaDtype cuda_dtype(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CudaDtype::kFloat32;
    case at::kBFloat16:
      return CudaDtype::kBFloat16;
    case at::kHalf:
      return CudaDtype::kFloat16;
    default:
      throw std::invalid_argument(std::string("[kernels] no CUDA kernel for ") +
                                  c10::toString(x.scalar_type()));
  }
}

void* stream_of(const at::Tensor& x) {
  return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()).native_handle();
}

void check(int error, const char* who) {
  if (error != 0)
    throw std::runtime_error(std::string("[") + who + "] CUDA error " + std::to_string(error));
}

}  // namespace

const CudaKernels* cuda_kernels() {
  static const CudaKernels* const kernels = open_library();
  return kernels;
}

at::Tensor norm_modulate_cuda(const CudaKernels& cuda, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& shift, double eps) {
  at::Tensor out = at::empty_like(x);
  const at::Tensor scales = scale.to(x.scalar_type()).contiguous(),
                   shifts = shift.to(x.scalar_type()).contiguous();
  check(cuda.norm_modulate(cuda_dtype(x), x.const_data_ptr(), scales.const_data_ptr(),
                           shifts.const_data_ptr(), out.mutable_data_ptr(), x.size(0), x.size(1),
                           x.size(2), static_cast<float>(eps), stream_of(x)),
        "norm_modulate");
  return out;
}

void gate_residual_cuda(const CudaKernels& cuda, at::Tensor& residual, const at::Tensor& x,
                        const at::Tensor& gate) {
  const at::Tensor input = x.to(residual.scalar_type()).contiguous();
  const at::Tensor gates = gate.to(residual.scalar_type()).contiguous();
  check(cuda.gate_residual(cuda_dtype(residual), residual.mutable_data_ptr(),
                           input.const_data_ptr(), gates.const_data_ptr(), residual.size(0),
                           residual.size(1), residual.size(2), stream_of(residual)),
        "gate_residual");
}

}  // namespace troupe::kernels
