#include "tests/gpu/gpu.h"

#include <dlfcn.h>

#include <cstdlib>
#include <exception>

#include "actors/device.h"

namespace troupe::testing {
namespace {

struct Found {
  std::optional<at::Device> device;
  std::string why;
};

/// Asks the driver first: loading LibTorch's CUDA half takes seconds.
std::string driver_trouble() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return "no CUDA driver";
  const auto initialise = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_devices = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  if (!initialise || !count_devices) return "libcuda.so.1 is not a CUDA driver";
  if (const int error = initialise(0)) return "cuInit: CUDA error " + std::to_string(error);
  int count = 0;
  if (const int error = count_devices(&count))
    return "cuDeviceGetCount: CUDA error " + std::to_string(error);
  return count > 0 ? "" : "the driver finds no device";
}

Found look() {
  Found found;
  found.why = driver_trouble();
  if (!found.why.empty()) return found;
  try {
    found.device = actors::open_device("cuda:0");
  } catch (const std::exception& error) {
    found.why = error.what();
  }
  return found;
}

const Found& found() {
  static const Found result = look();
  return result;
}

}  // namespace

std::optional<at::Device> gpu() {
  return found().device;
}

const std::string& why_no_gpu() {
  return found().why;
}

bool gpu_required() {
  return std::getenv("TROUPE_REQUIRE_GPU") != nullptr;
}

}  // namespace troupe::testing
