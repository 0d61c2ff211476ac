#include "actors/stage/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <fstream>
#include <string>

#include "base/available_memory.h"

namespace troupe::actors {

std::optional<std::uint64_t> available_memory_bytes(at::Device device,
                                                    const std::filesystem::path& root) {
  if (!device.is_cpu()) {
    try {
      return c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return available_memory(root);
}

void tell_memory(std::optional<std::uint64_t> bytes,
                 std::map<std::string, std::string>& attributes) {
  if (bytes) attributes["memory"] = std::to_string(*bytes);
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

std::int64_t cache_flushes(at::Device device) {
  if (device.is_cpu()) return 0;
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).num_alloc_retries;
}

void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace troupe::actors
