#include "actors/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "actors/control_group.h"

namespace troupe::actors {

std::uint64_t available_memory_bytes(at::Device device) {
  if (!device.is_cpu()) {
    try {
      return c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
    } catch (const std::exception&) {
      return 0;
    }
  }
  std::ifstream memory("/proc/meminfo");
  std::string line;
  while (std::getline(memory, line)) {
    if (!line.starts_with("MemAvailable:")) continue;
    const std::uint64_t available = std::stoull(line.substr(13)) * 1024;
    return std::min(available, left_in_control_groups().value_or(available));
  }
  return 0;
}

std::uint64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

void reset_peak_memory() {
  std::ofstream("/proc/self/clear_refs") << "5\n";
}

void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace troupe::actors
