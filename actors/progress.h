#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>

namespace troupe::actors {

/// Thrown inside the work loop when the epoch of what it is doing was ended.
class EpochEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the work loop and the second lane share: a counter that shows life, and the epochs that are
/// over. Thread-safe.
class WorkProgress {
 public:
  /// Counts a unit of work; long work calls it often (blocks of an encoder, layers of a decoder).
  void tick() { count_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

  void end_epoch(std::uint64_t epoch) {
    std::lock_guard lock(mutex_);
    ended_.insert(epoch);
    if (ended_.size() > kRemembered) ended_.erase(ended_.begin());  // epochs only grow
  }
  bool ended(std::uint64_t epoch) const {
    std::lock_guard lock(mutex_);
    return ended_.contains(epoch);
  }
  /// Counts, and leaves long work of an epoch that was ended.
  void tick_in(std::uint64_t epoch) {
    tick();
    if (ended(epoch)) throw EpochEnded("[actor] epoch " + std::to_string(epoch) + " has ended");
  }

  static constexpr std::size_t kRemembered = 1024;

 private:
  std::atomic<std::uint64_t> count_{0};
  mutable std::mutex mutex_;
  std::set<std::uint64_t> ended_;
};

}  // namespace troupe::actors
