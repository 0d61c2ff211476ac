#pragma once
#include <chrono>
#include <functional>
#include <thread>

namespace troupe::testing {

/// Time that a test waits for what must come. No measure of speed: machines that build and test
/// stand still for seconds, and start a host with its actors ten times slower than others.
inline constexpr std::chrono::seconds kPatience{120};

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Looks again every few milliseconds until it holds; false at the deadline.
inline bool eventually(std::chrono::milliseconds deadline, const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}
inline bool eventually(const std::function<bool()>& holds) {
  return eventually(kPatience, holds);
}

}  // namespace troupe::testing
