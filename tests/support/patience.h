#pragma once
#include <chrono>

namespace troupe::testing {

/// Time that a test waits for what must come. No measure of speed: machines that build and test
/// stand still for seconds, and start a host with its actors ten times slower than others.
inline constexpr std::chrono::seconds kPatience{120};

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace troupe::testing
