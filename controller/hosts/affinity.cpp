#include "controller/hosts/affinity.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <numeric>

namespace troupe::cluster {
namespace {

/// Set of CPUs with room for that many.
struct CpuSet {
  explicit CpuSet(int count)
      : cpus(CPU_ALLOC(static_cast<std::size_t>(count))),
        bytes(CPU_ALLOC_SIZE(static_cast<std::size_t>(count))) {
    if (!cpus) throw std::bad_alloc();
    CPU_ZERO_S(bytes, cpus);
  }
  ~CpuSet() { CPU_FREE(cpus); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  cpu_set_t* cpus;
  std::size_t bytes;
};

int run_on(const std::vector<int>& cpus) {
  CpuSet set(cpus.back() + 1);
  for (const int cpu : cpus)
    CPU_SET_S(static_cast<std::size_t>(cpu), set.bytes, set.cpus);
  return sched_setaffinity(0, set.bytes, set.cpus) == 0 ? 0 : errno;
}

}  // namespace

std::vector<int> allowed_cpus() {
  // The kernel wants room for all CPUs that it could have.
  for (int room = 1024; room <= 65536; room *= 4) {
    const CpuSet set(room);
    if (sched_getaffinity(0, set.bytes, set.cpus) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < room; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), set.bytes, set.cpus)) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

OnCpus::OnCpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  auto before = allowed_cpus();
  if (before.empty()) {
    error_ = "the CPUs of this process are not known";
  } else if (const int error = run_on(cpus)) {
    error_ = strerror(error);
  } else {
    before_ = std::move(before);
  }
}

OnCpus::~OnCpus() {
  if (before_.empty() || run_on(before_) == 0) return;
  // The cpuset was changed meanwhile: whatever it allows now.
  std::vector<int> all(static_cast<std::size_t>(std::max(before_.back() + 1, 1024)));
  std::iota(all.begin(), all.end(), 0);
  run_on(all);
}

}  // namespace troupe::cluster
