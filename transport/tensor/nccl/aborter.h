#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "transport/tensor/fd.h"
#include "transport/tensor/group.h"

namespace troupe::tensor::nccl {

/// First cause that ended a communicator. Its lock is held for the copy of a text alone.
class Verdict {
 public:
  struct Cause {
    Failure kind = Failure::aborted;
    int culprit = -1;
    std::string text;
  };

  /// Sets the cause. False when there is one already.
  bool give(Cause cause);
  bool given() const { return given_.load(std::memory_order_acquire); }
  /// Returns the cause; nothing until it was given.
  std::optional<Cause> cause() const;

 private:
  std::atomic<bool> given_ = false;
  mutable std::mutex mutex_;
  Cause cause_;
};

/// The thread that ends one communicator. It exists, with its device current, before anything can
/// go wrong: behind a stuck device a new thread may wait for ever in its first call of CUDA. To ask
/// it takes no lock that is held across such a call, and it calls nothing of CUDA's before `end`.
class Aborter {
 public:
  struct Calls {
    std::function<void()> begin;  ///< first of all on the thread: makes the device current
    std::function<void()> end;    ///< ends the communicator, once
  };

  /// Returns when `begin` has run; throws what it threw, or std::runtime_error past the deadline.
  Aborter(Calls calls, Deadline deadline);
  /// The thread ends; it runs `end` before where it was asked to.
  ~Aborter();
  Aborter(const Aborter&) = delete;
  Aborter& operator=(const Aborter&) = delete;

  /// `end` runs now. Never blocks; the second time nothing.
  void ask();
  /// `end` runs at that time, unless it has before.
  void ask_by(Deadline deadline);
  /// Waits until `end` has returned, at most until `span` after it was asked for. At once where
  /// nobody has asked.
  void await_end(std::chrono::milliseconds span) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::tensor::nccl
