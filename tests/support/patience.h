#pragma once
#include <algorithm>
#include <chrono>
#include <limits>

namespace troupe::testing {

/// Time that a test waits for what must come. No measure of speed: machines that build and test
/// stand still for seconds, and start a host with its actors ten times slower than others.
inline constexpr std::chrono::seconds kPatience{120};

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Returns the least of up to five numbers of seconds; the first below `enough` is the last. For
/// what is promised to be quick: a machine that is busy once is not so each time.
template <class F>
double least(double enough, const F& seconds) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 5 && best >= enough; ++run)
    best = std::min(best, static_cast<double>(seconds()));
  return best;
}

/// Returns the least of up to five durations of `action` in seconds, as `least` does.
template <class F>
double quickest(double enough, const F& action) {
  return least(enough, [&] {
    const auto begin = std::chrono::steady_clock::now();
    action();
    return seconds_since(begin);
  });
}

}  // namespace troupe::testing
