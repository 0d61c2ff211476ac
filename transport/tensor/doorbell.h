#pragma once

#include <atomic>
#include <cstdint>

#include "transport/tensor/fd.h"

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

}  // namespace troupe::tensor
