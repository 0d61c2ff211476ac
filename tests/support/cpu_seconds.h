#pragma once
#include <time.h>

#include <algorithm>
#include <limits>

namespace troupe::testing {

/// Processor time of this thread that `work` takes, the least of three runs: what others do on the
/// machine hardly shows in it.
template <class Work>
double cpu_seconds(Work&& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 3; ++run) {
    const double begin = now();
    work();
    least = std::min(least, now() - begin);
  }
  return least;
}

}  // namespace troupe::testing
