#include "kernels/cuda_library.h"

#include <dlfcn.h>

#include "kernels/plugin_library.h"

namespace troupe::kernels {

namespace {

const CudaKernels* open_library() {
  void* library = open_plugin("libtroupe_kernels_cuda.so", "TROUPE_KERNELS_CUDA");
  if (!library) return nullptr;
  auto entry = reinterpret_cast<const CudaKernels* (*)()>(dlsym(library, "troupe_cuda_kernels"));
  if (!entry) return nullptr;
  const CudaKernels* kernels = entry();
  return kernels && kernels->version == kCudaKernelsVersion ? kernels : nullptr;
}

}  // namespace

const CudaKernels* cuda_kernels() {
  static const CudaKernels* const kernels = open_library();
  return kernels;
}

}  // namespace troupe::kernels
