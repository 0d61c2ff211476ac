#pragma once
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/soak/soak_cluster.h"
#include "troupe/client.h"

namespace troupe::soak {

using Clock = std::chrono::steady_clock;

/// Counts of events so far; written and read by all threads.
struct Counts {
  std::atomic<int> succeeded = 0, cancelled = 0, failed = 0, different = 0, compared = 0;
  std::atomic<int> host_gone =
      0;  // jobs that failed because no idle actor took a gone host's place
  std::atomic<int> lost_and_named = 0;  // with a flipped bit: told as such, not lost in silence
  std::atomic<int> recoveries = 0, traces = 0, user_calls = 0;
  std::atomic<int> actors_killed = 0, actors_frozen = 0, actors_stopped = 0, users_killed = 0;
  std::atomic<int> clients_vanished = 0, guests_killed = 0, guests_left = 0, controllers_killed = 0;
  std::atomic<int> bits_flipped = 0, salvages = 0, hostile_acts = 0, refused = 0, starvations = 0;
};

/// List of faults, a line each.
class Faults {
 public:
  void note(const std::string& fault) {
    const std::lock_guard lock(mutex_);
    list_.push_back(fault);
  }
  std::vector<std::string> list() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }
  /// Notes what the action throws.
  template <class Action>
  void guarded(const Action& action) {
    try {
      action();
    } catch (const std::exception& error) {
      note(error.what());
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> list_;
};

struct Kind {
  std::string method;
  int patches = 1;
  Parallelism degrees;
  std::vector<float> undisturbed = {};
};

/// The jobs and calls that a cluster is given while it is struck, and what must be true of them.
class Load {
 public:
  Load(const SoakCluster& cluster, Counts& counts, Faults& faults)
      : cluster_(cluster), counts_(counts), faults_(faults) {}

  /// Each kind of job once, undisturbed: the first time its latents are kept, later compared.
  void every_kind();
  /// Hands in random jobs one after another, cancels some, until then.
  void hand_in(Clock::time_point end, unsigned seed);
  /// Calls a users' actor all the time. It must answer again within 90 s, whatever happens.
  void call_users(Clock::time_point end);

 private:
  std::uint64_t hand_in(Client& client, const Kind& kind);
  void judge(const Kind& kind, const Result<JobResult>& result, bool look_at_trace);
  void check_trace(std::uint64_t job);

  const SoakCluster& cluster_;
  Counts& counts_;
  Faults& faults_;
  std::vector<Kind> kinds_;
  std::mutex mutex_;
  std::set<std::uint64_t> numbers_;  // that were given out
};

/// Strikes at random until then; controllers only where `controllers`. Without, actor 0 is left
/// alone, so that there are processes that live long.
void strike(SoakCluster& cluster, Counts& counts, Faults& faults, Clock::time_point end,
            unsigned seed, bool controllers);

}  // namespace troupe::soak
