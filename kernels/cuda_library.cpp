#include "kernels/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>

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

void* open_plugin(const std::string& file, const char* variable, std::string* why) {
  const char* chosen = std::getenv(variable);
  void* library = dlopen(chosen ? chosen : file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library && !chosen) {
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&open_plugin), &here) && here.dli_fname) {
      const std::string program = here.dli_fname;
      const std::string folder = program.substr(0, program.find_last_of('/') + 1);
      library = dlopen((folder + "../lib/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
  if (!library && why) {
    const char* error = dlerror();
    *why = error ? error : "cannot be loaded";
  }
  return library;
}

const CudaKernels* cuda_kernels() {
  static const CudaKernels* const kernels = open_library();
  return kernels;
}

}  // namespace troupe::kernels
