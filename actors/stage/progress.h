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

/// Thrown out of the loading of weights that nobody waits for any more.
class LoadCancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// State that the work loop and the second lane share: a counter that shows life, the epochs and
/// deployments that are over, and the jobs that are watched. Thread-safe.
class WorkProgress {
 public:
  /// Counts a unit of work; long work calls it often (blocks of an encoder, layers of a decoder).
  void tick() { count_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

  void end_epoch(std::uint64_t epoch) {
    std::lock_guard lock(mutex_);
    remember(ended_, epoch);
  }
  bool ended(std::uint64_t epoch) const {
    std::lock_guard lock(mutex_);
    return all_ended_ || ended_.contains(epoch);
  }
  /// The deployment is not wanted any more, also while it is being loaded.
  void unload(std::uint64_t deployment) {
    std::lock_guard lock(mutex_);
    remember(unloaded_, deployment);
  }
  bool unloaded(std::uint64_t deployment) const {
    std::lock_guard lock(mutex_);
    return all_ended_ || unloaded_.contains(deployment);
  }
  /// Makes values of the job that are not finite be reported from now on instead of failing the
  /// job.
  void watch(std::uint64_t job) {
    std::lock_guard lock(mutex_);
    remember(watched_, job);
  }
  bool watched(std::uint64_t job) const {
    std::lock_guard lock(mutex_);
    return watched_.contains(job);
  }
  /// The process leaves: every epoch and every loading ends.
  void end_all() {
    std::lock_guard lock(mutex_);
    all_ended_ = true;
  }
  /// Counts, and leaves long work of an epoch that was ended.
  void tick_in(std::uint64_t epoch) {
    tick();
    if (ended(epoch)) throw EpochEnded("[actor] epoch " + std::to_string(epoch) + " has ended");
  }
  /// Counts, and leaves the loading of a deployment that was taken down.
  void tick_loading(std::uint64_t deployment) {
    tick();
    if (unloaded(deployment))
      throw LoadCancelled("[actor] deployment " + std::to_string(deployment) +
                          " was taken down while it was loaded");
  }

  static constexpr std::size_t kRemembered = 1024;

 private:
  /// Numbers of epochs, deployments and jobs only grow.
  static void remember(std::set<std::uint64_t>& numbers, std::uint64_t number) {
    numbers.insert(number);
    if (numbers.size() > kRemembered) numbers.erase(numbers.begin());
  }

  std::atomic<std::uint64_t> count_{0};
  mutable std::mutex mutex_;
  std::set<std::uint64_t> ended_;
  std::set<std::uint64_t> unloaded_;
  std::set<std::uint64_t> watched_;
  bool all_ended_ = false;
};

}  // namespace troupe::actors
