#include "base/available_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <string>
#include <system_error>

#include "base/control_group.h"
#include "base/text.h"

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

std::string address_limit_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "ulimit -v allows " + bytes_text(limit.rlim_cur) + " of addresses";
}

std::string no_threads_text(const std::string& why) {
  const auto limit = address_limit_text();
  return "no more threads can be started: " + why + " (" +
         (limit.empty() ? "see ulimit -u" : limit) + ")";
}

std::string text_of(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return no_threads_text(system->what());
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  const auto limit = address_limit_text();
  return "out of memory" + (limit.empty() ? "" : " (" + limit + ")");
}

}  // namespace troupe
