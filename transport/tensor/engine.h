#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/tensor/fd.h"
#include "transport/tensor/group.h"

namespace troupe::tensor {

/// The words of a doorbell, in memory that a process shares with its peers.
struct DoorbellWords {
  std::atomic<std::uint32_t> rings;      ///< counts; the futex that waiting threads sleep on
  std::atomic<std::uint32_t> attending;  ///< threads that will look at `rings` before they sleep
  std::atomic<std::uint32_t> sleeping;   ///< threads inside the futex
  std::atomic<std::uint32_t> signalled;  ///< the event descriptor has been written to
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// One per process and device. Peers ring it when they have written what this process awaits, or
/// read what it could not write past. A thread that attends gets the ring through a futex; when
/// none does, the progress thread gets it through an event descriptor.
class Doorbell {
 public:
  static constexpr std::size_t kBytes = 4096;

  /// A doorbell of this process's own.
  Doorbell();
  /// A peer's, from the descriptors it passed.
  Doorbell(const UniqueFd& memory, UniqueFd event);

  /// Wakes the thread that looks after this doorbell.
  void ring();
  /// Wakes only threads that attend, of this process.
  void ring_attendants();

  std::uint32_t rings() const { return words().rings.load(); }
  void attend() { words().attending.fetch_add(1); }
  void leave() { words().attending.fetch_sub(1); }
  std::uint32_t attendants() const { return words().attending.load(); }
  /// Sleeps until `rings() != seen` or the deadline.
  void sleep(std::uint32_t seen, Deadline deadline);
  /// Clears the event descriptor; for the progress thread, when the descriptor became readable.
  /// Whoever calls this looks for work afterwards, not before: rings up to its return are not
  /// signalled again.
  void clear_event();

  int memory_fd() const { return memory_.get(); }
  int event_fd() const { return event_.get(); }

 private:
  DoorbellWords& words() const { return *reinterpret_cast<DoorbellWords*>(mapping_.data()); }
  void wake_sleepers();

  UniqueFd memory_;
  UniqueFd event_;
  Mapping mapping_;
};

class Engine;

/// Owner of an operation: backend, group and rank. Lives as long as the last of a group's
/// operations.
struct Membership {
  std::string backend;
  std::string group;
  int rank = 0;
  std::weak_ptr<Engine> engine;
  std::atomic<std::uint64_t> waiting_nanoseconds{0};

  /// `[tensor.shm] group "g" rank 0: `
  std::string prefix() const;
};

/// An operation over pairs. Everything but `done` and `wait` happens under the engine's drive lock,
/// or before the operation is handed to the engine.
class Operation : public WorkState {
 public:
  enum class State { pending, succeeded, failed };

  Operation(std::shared_ptr<Membership> member, const char* kind, const char* relation, int peer,
            std::size_t bytes)
      : member_(std::move(member)), kind_(kind), relation_(relation), peer_(peer), bytes_(bytes) {}

  bool done() override { return state_.load(std::memory_order_acquire) != State::pending; }
  void wait(Deadline deadline) override;

  /// Keeps `tensor` until the operation has ended.
  void keep(at::Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  void succeed();
  void fail(Failure failure, int peer, const std::string& cause);
  /// `receive of 4096 bytes from rank 1`
  std::string describe() const;

  /// Transfers that have not ended yet.
  std::size_t transfers_left = 0;
  /// Number of those that are receives which must end before `open_gate` runs and gated transfers
  /// may start.
  std::size_t gate_left = 0;
  bool gate_open = true;
  std::function<void()> open_gate;

 private:
  void settle(State state);
  TransferError error() const;

  std::shared_ptr<Membership> member_;
  const char* kind_;
  const char* relation_;
  int peer_;
  std::size_t bytes_;
  std::vector<at::Tensor> tensors_;
  Failure failure_ = Failure::aborted;
  int culprit_ = -1;
  std::string cause_;
  std::atomic<State> state_{State::pending};
};

/// Bytes to move over one pair in one direction, as one message.
struct Transfer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<Operation> operation;
  bool gated = false;       ///< a send that may start only when its operation's gate is open
  bool opens_gate = false;  ///< a receive that the gate waits for
};

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
