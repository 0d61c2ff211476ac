// In the place of libtorch_cuda.so: it registers hooks that know of one GPU, as that library does,
// and computes nothing.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
