#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/control_group.h"

namespace troupe {

std::optional<std::uint64_t> available_memory(const std::filesystem::path& root) {
  const auto left = left_in_control_groups(root);
  std::ifstream info(root / "proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  for (std::string unit; info >> name >> kilobytes && std::getline(info, unit);) {
    if (name != "MemAvailable:") continue;
    const std::uint64_t available = kilobytes * 1024;
    return std::min(available, left.value_or(available));
  }
  return left;
}

}  // namespace troupe
