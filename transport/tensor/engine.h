#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/tensor/doorbell.h"
#include "transport/tensor/operation.h"

namespace troupe::tensor {

/// Something that moves bytes when pollable.
class Pollable {
 public:
  virtual ~Pollable() = default;
  /// Moves what can be moved without waiting, within a bound. True if there is more to do at once;
  /// false if every pending transfer waits for its peer, who has been asked to ring.
  virtual bool advance() = 0;
};

/// Makes the groups of one device progress. Whoever has time drives, one thread at a time: the
/// thread that issues an operation (one bounded pass), the threads inside `Work::wait`, and else
/// the engine's own progress thread, which runs the device's io_context.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine();
  ~Engine();

  boost::asio::io_context& io() { return io_; }
  Doorbell& doorbell() { return doorbell_; }

  void add(Pollable* pollable);
  /// Removes `pollable`: after this returns, no thread is inside it.
  void remove(Pollable* pollable);

  /// Drives one bounded pass here unless another thread is driving; then that one looks again.
  void kick();
  /// A peer's process has ended, maybe while it rang: later rings of others must be heard.
  void peer_died();
  /// Runs `action` while nobody drives.
  template <typename Action>
  void exclusively(Action&& action) {
    {
      std::lock_guard lock(drive_mutex_);
      action();
    }
    doorbell_.ring_attendants();
    rekick();
  }

  /// Waits until `operation` has ended or the deadline has passed.
  void wait(Operation& operation, Deadline deadline);
  /// Notes that an operation has ended, so other waiting threads have to look. Called under the
  /// drive lock.
  void note_settled() { settled_ = true; }

 private:
  enum class Pass { blocked, more, busy };
  Pass pass();
  void rekick();
  void wake_progress_thread();
  void watch_doorbell();
  bool spin(std::uint32_t seen);

  Doorbell doorbell_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  boost::asio::posix::stream_descriptor event_;
  std::mutex drive_mutex_;
  std::vector<Pollable*> pollables_;
  bool settled_ = false;
  std::atomic<bool> look_again_{false};
  std::atomic<bool> progress_posted_{false};
  std::atomic<int> spin_credit_{8};
  std::thread thread_;
};

}  // namespace troupe::tensor
