#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transport/wire/task_messages.h"

namespace troupe::actors {

/// A point in what a device is given to do.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Returns whether the device has come to this mark. Never waits; throws the error that the
  /// device has met.
  virtual bool passed() const = 0;
  /// Returns the device's seconds from `earlier` to this mark; both were passed.
  virtual double seconds_since(const DeviceMark& earlier) const = 0;
};

/// Sets marks behind what the calling thread has issued on its current stream.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual std::unique_ptr<DeviceMark> mark() = 0;
};

/// Returns the device's clock; null on a CPU, where a call has been done when it returns.
std::shared_ptr<DeviceClock> make_device_clock(at::Device device);

/// Two marks, one behind the other.
struct DeviceSpan {
  std::unique_ptr<DeviceMark> begin;
  std::unique_ptr<DeviceMark> end;
};

/// Tells whether a device waits for a peer, which does not count as hanging: by the marks around
/// such waits of one task, in their order.
class PeerWaits {
 public:
  /// `patience`: longest time of each wait.
  explicit PeerWaits(std::chrono::nanoseconds patience) : patience_(patience) {}
  /// Returns true if the device is in one of the waits now, and has not been seen in it for longer
  /// than the patience.
  bool now(const std::vector<DeviceSpan>& waits, std::int64_t now_ns);

 private:
  std::chrono::nanoseconds patience_;
  std::size_t wait_ = 0;  // the first that has not ended, and since when it was seen to have begun
  std::optional<std::int64_t> since_ns_;
};

/// Times at which a task ran and at which the device waited for peers within it, by this process's
/// monotonic clock.
struct RanAt {
  wire::ClockSpan ran;
  std::vector<wire::ClockSpan> waits;
};

/// Thread that reports the ends of tasks which the work loop only issues: each task when the device
/// has completed it, in the order in which the tasks were added, with the device's own times.
/// Nobody waits for the device. A task that has not ended shows no progress, so that a device that
/// hangs is found by --task-deadline; but a device that waits for a peer does not hang.
class TaskEnds {
 public:
  struct Tools {
    std::function<void()> begin;  ///< first of all on the thread: makes the device current
    std::function<bool(std::uint64_t epoch)>
        ended;                             ///< nobody waits for that epoch's tasks any more
    std::function<std::int64_t()> now_ns;  ///< returns the time of this process's monotonic clock
    /// Called often while the device waits for a peer, in each wait for at most the patience.
    std::function<void()> waits;
    std::chrono::nanoseconds patience;
  };
  struct Task {
    std::uint64_t epoch = 0;
    DeviceSpan ran;
    std::vector<DeviceSpan> waits;
    // One of these is called, on this object's thread.
    std::function<void(const RanAt&)> tell;
    std::function<void(const std::exception&)> fail;  ///< called with the device's error
  };

  explicit TaskEnds(Tools tools);
  /// Drops the tasks whose end has not come.
  ~TaskEnds();
  TaskEnds(const TaskEnds&) = delete;
  TaskEnds& operator=(const TaskEnds&) = delete;

  void add(Task task);

 private:
  void loop();
  /// Returns whether the task is finished: the device has come to its end, or the task was dropped.
  /// `peers` are of this task.
  bool settle(Task& task, PeerWaits& peers);
  RanAt times_of(const Task& task);

  Tools tools_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool closing_ = false;
  std::unique_ptr<DeviceMark> last_end_;  // of the thread's own, and when that was
  std::int64_t last_end_ns_ = 0;
  std::thread thread_;
};

}  // namespace troupe::actors
