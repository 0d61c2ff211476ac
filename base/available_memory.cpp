#include "base/available_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <new>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/text.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// Names of the files of a version of control groups.
struct Version {
  const char* limit;
  const char* used;
  std::array<std::string_view, 2> cached;  // lines of memory.stat, of a group with those below it
};

constexpr Version kFirst{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};
constexpr Version kSecond{"memory.max", "memory.current", {"active_file", "inactive_file"}};

/// Place at which a hierarchy that counts memory can be seen, and the first of its groups that is
/// seen.
struct Mount {
  const Version* version = nullptr;
  std::string from;
  std::string at;
};

std::vector<std::string> words_of(std::string_view text, char between) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(between, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

/// Reads the mounts that count memory, in lines such as "31 23 0:28 FROM AT rw,… [shared:1 …] -
/// TYPE SOURCE OPTIONS".
std::vector<Mount> mounts(const fs::path& root) {
  std::vector<Mount> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto middle = line.find(" - ");
    if (middle == std::string::npos) continue;
    const auto before = words_of(std::string_view(line).substr(0, middle), ' ');
    const auto after = words_of(std::string_view(line).substr(middle + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    if (after[0] == "cgroup2") found.push_back({&kSecond, before[3], before[4]});
    if (after[0] == "cgroup" && has(words_of(after[2], ','), "memory"))
      found.push_back({&kFirst, before[3], before[4]});
  }
  return found;
}

/// Returns this process's group, from "4:memory:/GROUP" of version 1 or "0::/GROUP" of version 2.
std::string own_group(const fs::path& root, const Version& version) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (&version == &kSecond ? controllers.empty() : has(words_of(controllers, ','), "memory"))
      return line.substr(second + 1);
  }
  return "/";
}

/// Returns the number in a file of one number; nothing where it says "max" or is not there.
std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::uint64_t value = 0;
  return std::ifstream(path) >> value ? std::optional(value) : std::nullopt;
}

std::uint64_t cached(const fs::path& group, const Version& version) {
  std::uint64_t sum = 0;
  std::ifstream file(group / "memory.stat");
  std::string name;
  std::uint64_t bytes = 0;
  while (file >> name >> bytes) {
    if (std::ranges::find(version.cached, name) != version.cached.end()) sum += bytes;
  }
  return sum;
}

std::optional<std::uint64_t> left_in(const fs::path& group, const Version& version) {
  const auto limit = number_in(group / version.limit);
  if (!limit) return std::nullopt;
  const auto used = number_in(group / version.used).value_or(0);
  return *limit - std::min(*limit, used - std::min(used, cached(group, version)));
}

}  // namespace

std::optional<std::uint64_t> left_in_control_groups(const fs::path& root) {
  std::optional<std::uint64_t> least;
  for (const auto& mount : mounts(root)) {
    // Where only a part of the hierarchy is to be seen, it begins at the mount.
    fs::path group = root / fs::path(mount.at).relative_path();
    std::vector<fs::path> all{group};
    const auto inside = fs::path(own_group(root, *mount.version)).lexically_relative(mount.from);
    for (const auto& part : inside) {
      if (part == "..") break;
      if (!part.empty() && part != ".") all.push_back(group /= part);
    }
    for (const auto& one : all) {
      if (const auto left = left_in(one, *mount.version))
        least = std::min(least.value_or(*left), *left);
    }
  }
  return least;
}

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
