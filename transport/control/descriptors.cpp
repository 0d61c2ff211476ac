#include "transport/control/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "base/files.h"
#include "base/format.h"

namespace troupe::control {
namespace {

constexpr rlim_t kMostEver = 1u << 20;
constexpr std::size_t kReserveOf = 8;  // one in so many
constexpr std::size_t kSmallestReserve = 16;
constexpr std::size_t kLargestReserve = 1024;
constexpr std::chrono::seconds kClaimHolds{30};

using Clock = std::chrono::steady_clock;

struct Claims {
  struct Claim {
    Clock::time_point until;
    std::size_t count;
  };
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, Claim> open;

  std::size_t count(Clock::time_point now) {
    std::erase_if(open, [now](const auto& claim) { return claim.second.until <= now; });
    std::size_t sum = 0;
    for (const auto& [number, claim] : open)
      sum += claim.count;
    return sum;
  }
};

Claims& claims() {
  static Claims all;
  return all;
}

}  // namespace

void meet_limits() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    const rlim_t wanted = std::min(limit.rlim_max, kMostEver);
    if (limit.rlim_cur < wanted) {
      limit.rlim_cur = wanted;
      setrlimit(RLIMIT_NOFILE, &limit);
    }
  }
  signal(SIGXFSZ, SIG_IGN);
}

std::size_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLargestReserve;
  return static_cast<std::size_t>(std::min(limit.rlim_cur, kMostEver));
}

std::size_t descriptors_in_use() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (!folder) return descriptor_limit();  // none is left to look with
  std::size_t count = 0;
  while (const dirent* entry = readdir(folder.get()))
    count += entry->d_name[0] != '.';
  return count - 1;  // the one that looks
}

std::size_t descriptor_reserve() {
  return std::clamp(descriptor_limit() / kReserveOf, kSmallestReserve, kLargestReserve);
}

std::size_t descriptors_for_members() {
  return descriptor_limit() - std::min(descriptor_limit(), 2 * descriptor_reserve());
}

bool short_of_descriptors() {
  // A new descriptor has the lowest number that is free: all below it are taken.
  const FileHandle next(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return !next || static_cast<std::size_t>(next.get()) >= descriptors_for_members();
}

std::string no_descriptors_text() {
  return fmt::format(
      "of the {} descriptors that this process may have (ulimit -n) {} are kept in reserve, and {} "
      "are in use",
      descriptor_limit(), 2 * descriptor_reserve(), descriptors_in_use());
}

DescriptorClaim::DescriptorClaim(const std::string& what, std::size_t now, std::size_t soon) {
  auto& all = claims();
  const std::lock_guard lock(all.mutex);
  const auto time = Clock::now();
  const std::size_t taken = descriptors_in_use() + all.count(time);
  if (taken + now + soon > descriptors_for_members())
    throw std::runtime_error(what + ": no descriptors to spare: " + no_descriptors_text());
  number_ = ++all.last;
  all.open[number_] = {time + kClaimHolds, soon};
}

DescriptorClaim::~DescriptorClaim() {
  auto& all = claims();
  const std::lock_guard lock(all.mutex);
  all.open.erase(number_);
}

}  // namespace troupe::control
