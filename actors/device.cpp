#include "actors/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <typeinfo>

#include "base/error_text.h"
#include "base/text.h"

namespace troupe::actors {
namespace {

/// Returns the reason why the driver has no GPU to give; empty if it has one.
std::string driver_trouble() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return "no CUDA driver (libcuda.so.1)";
  const auto initialise = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_devices = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  if (initialise == nullptr || count_devices == nullptr)
    return "a libcuda.so.1 that is no CUDA driver";
  int count = 0;
  int error = initialise(0);
  if (error == 0) error = count_devices(&count);
  if (error != 0) return "a CUDA driver that finds no GPU (error " + std::to_string(error) + ")";
  return count > 0 ? "" : "no GPU";
}

/// Codes of CUDA errors that stick, with CUDA's names without `cudaError`.
constexpr std::array kSticking = {
    214,  // ECCUncorrectable
    220,  // NvlinkUncorrectable
    226,  // Contained
    kIllegalAddress,
    702,  // LaunchTimeout
    709,  // ContextIsDestroyed
    710,  // Assert
    714,  // HardwareStackError
    715,  // IllegalInstruction
    716,  // MisalignedAddress
    717,  // InvalidAddressSpace
    718,  // InvalidPc
    719,  // LaunchFailure
    721,  // TensorMemoryLeak
    810,  // MpsClientTerminated
    911,  // ExternalDevice
};

std::optional<std::string> told(const std::exception& error) {
  const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(&error);
  if (of_device == nullptr || !sticks(of_device->get_error_code())) return std::nullopt;
  return "error " + std::to_string(of_device->get_error_code()) + ", " +
         first_line(of_device->what_without_backtrace());
}

}  // namespace

void open_cuda_half(const std::string& device) {
  // Asked first: the other half of LibTorch has a gigabyte, which takes many seconds from a disk.
  if (const auto trouble = driver_trouble(); !trouble.empty())
    throw std::runtime_error("[actor] device " + device + " is not there: this machine has " +
                             trouble);
  // Its static initialisers register CUDA with ATen; the handle stays open as long as the process.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error("[actor] device " + device +
                             " needs LibTorch's CUDA half: " + dlerror());
  }
  // ATen makes its hooks at the first question, and keeps an empty set where it knew of no others.
  const auto& hooks = at::detail::getCUDAHooks();
  if (typeid(hooks) == typeid(at::CUDAHooksInterface)) {
    throw std::runtime_error(
        "[actor] device " + device +
        " came too late: LibTorch was asked for CUDA before its CUDA half was opened (a seed that "
        "is set is such a question), and has settled on having none; open the device first");
  }
}

at::Device open_device(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  if (!name.starts_with("cuda")) {
    throw std::runtime_error("[actor] device is \"" + name + "\": cpu, cuda or cuda:N");
  }
  open_cuda_half(name);
  const at::Device device(name);
  const int count = at::detail::getCUDAHooks().deviceCount();
  const int index = device.has_index() ? device.index() : 0;
  if (index >= count) {
    throw std::runtime_error("[actor] device " + name + " is not there: this machine has " +
                             (count == 0 ? "no GPU that LibTorch takes" : counted(count, "GPU")));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

std::string device_name(at::Device device) {
  if (!device.is_cuda()) return "";
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return "";
  const auto find = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto tell = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  std::array<char, 256> name{};
  int handle = 0;
  const int index = device.has_index() ? device.index() : 0;
  if (find == nullptr || tell == nullptr || find(&handle, index) != 0) return "";
  if (tell(name.data(), static_cast<int>(name.size()) - 1, handle) != 0) return "";
  return name.data();
}

void make_current(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

bool sticks(int cuda_error) {
  return std::ranges::find(kSticking, cuda_error) != kSticking.end();
}

std::optional<std::string> lost_device(const std::exception& error, at::Device device) {
  if (auto why = told(error)) return why;
  if (!device.is_cuda()) return std::nullopt;
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.queryStream(guard.getStream(device));
  } catch (const std::exception& answer) {
    return told(answer);
  }
  return std::nullopt;
}

}  // namespace troupe::actors
