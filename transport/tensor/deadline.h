#pragma once
#include <chrono>

namespace troupe::tensor {

using Deadline = std::chrono::steady_clock::time_point;

/// The deadline that lies `span` ahead of now.
template <typename Rep, typename Period>
Deadline within(std::chrono::duration<Rep, Period> span) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(span);
}

}  // namespace troupe::tensor
