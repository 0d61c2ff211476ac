#include "actors/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <stdexcept>

#include "models/spec/counted.h"

namespace troupe::actors {

at::Device open_device(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  if (!name.starts_with("cuda")) {
    throw std::runtime_error("[actor] device is \"" + name + "\": cpu, cuda or cuda:N");
  }
  // Its static initialisers register CUDA with ATen; the handle stays open as long as the process.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error(std::string("[actor] device ") + name +
                             " needs LibTorch's CUDA half: " + dlerror());
  }
  const at::Device device(name);
  const int count = at::detail::getCUDAHooks().deviceCount();
  const int index = device.has_index() ? device.index() : 0;
  if (index >= count) {
    throw std::runtime_error("[actor] device " + name + " is not there: this machine has " +
                             (count == 0 ? "no GPU" : spec::counted(count, "GPU")));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

void make_current(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace troupe::actors
