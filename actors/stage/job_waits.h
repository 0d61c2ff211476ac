#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "actors/stage/progress.h"
#include "actors/stage/task_ends.h"
#include "transport/tensor/group.h"
#include "transport/wire/task_messages.h"

namespace troupe::actors {

/// Waits of a job for its peers, and their times. Used by the work loop only.
class JobWaits {
 public:
  /// `clock` is null on a CPU.
  JobWaits(WorkProgress& progress, std::uint64_t epoch, std::chrono::milliseconds deadline,
           std::shared_ptr<DeviceClock> clock)
      : progress_(progress), epoch_(epoch), deadline_(deadline), clock_(std::move(clock)) {}

  /// Waits until the operation has ended; on a device only the device waits, and the work loop goes
  /// on. Throws the error that ended the operation, or EpochEnded.
  void wait(const tensor::Work& work);
  /// Waits for the device before the host reads what the device makes, and shows progress while the
  /// device waits for a peer. Returns at once on a CPU. Throws when the epoch has ended, and at the
  /// deadline.
  void await_device();
  /// Returns the function that the host calls between two questions to the device, for one such
  /// wait.
  std::function<void()> pause_for_device() const;
  /// Returns the seconds of all waits of the work loop so far.
  double seconds() const { return seconds_; }
  /// Returns the spans of the waits since the last call; past a bound the last span stands for all
  /// further waits. If the device waits, its marks are the spans.
  std::vector<wire::ClockSpan> take_spans() { return std::exchange(spans_, {}); }
  std::vector<DeviceSpan> take_device_spans() { return std::exchange(device_spans_, {}); }

 private:
  void wait_on_device(const tensor::Work& work);
  void note(std::chrono::steady_clock::time_point start);

  WorkProgress& progress_;
  std::uint64_t epoch_;
  std::chrono::milliseconds deadline_;
  std::shared_ptr<DeviceClock> clock_;
  double seconds_ = 0;
  std::vector<wire::ClockSpan> spans_;
  std::vector<DeviceSpan> device_spans_;
};

}  // namespace troupe::actors
