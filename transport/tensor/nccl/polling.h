#pragma once

#include <nccl.h>

#include <chrono>
#include <thread>

namespace troupe::tensor::nccl {

/// Pauses between two looks of a waiting thread. Busy at first, since most waits end within
/// microseconds; then easy on the processor.
inline void pause(int turn) {
  using namespace std::chrono_literals;
  if (turn < 200)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(turn < 2000 ? 20us : 200us);
}

inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

}  // namespace troupe::tensor::nccl
