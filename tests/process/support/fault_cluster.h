#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "controller/app/cluster.h"
#include "tests/support/patience.h"
#include "troupe/client.h"

namespace troupe::testing {

/// How a job that did not succeed ended, and how long after the blow.
struct Fall {
  Error error;
  double seconds = 0;
};
/// The most that a fall may take that comes by itself: far from any deadline of a task or a group,
/// and more than a busy machine keeps a process from running. How soon it comes on a quiet machine
/// is measured by benchmarks/faults.cpp.
inline constexpr double kAtOnce = 30;

/// A cluster to be mistreated: its actors can be frozen, killed and looked at while a job runs.
class FaultCluster {
 public:
  explicit FaultCluster(cluster::ClusterOptions options);

  cluster::Cluster& cluster() { return cluster_; }
  Client& client() { return client_; }
  Client another_client() const;

  ClusterInfo status();
  std::vector<pid_t> pids();
  std::uint64_t restarts();
  std::optional<JobInfo> job(std::uint64_t id);
  /// Waits until every actor is there and none is busy.
  bool whole(std::chrono::milliseconds deadline = kPatience);

  /// Submits; throws when it is refused.
  std::uint64_t submit(const Submission& submission, Client::OnProgress on_progress = nullptr);
  /// Submits and waits; throws with the cause when the job does not succeed.
  JobResult run(const Submission& submission);
  using Blow = std::function<void(std::uint64_t job)>;
  /// Runs a job and strikes actors when it has come to `step`. Nothing where that was not in time:
  /// the job had ended, or the boundary that it went on from was of fewer than `kept` steps, for
  /// boundaries come in when they can. The cluster is whole again then.
  std::optional<JobResult> struck_once(const Submission& submission, int step, const Blow& blow,
                                       int kept = 1);
  /// Again until it is in time; throws when it never is.
  JobResult struck(const Submission& submission, int step, const Blow& blow, int kept = 1);
  /// SIGSTOP or SIGCONT for all actors.
  void freeze();
  void thaw();
  /// Waits for the job's end and measures since `blow`; nothing when it succeeded.
  std::optional<Fall> fall_of(std::uint64_t job, std::chrono::steady_clock::time_point blow);

 private:
  cluster::Cluster cluster_;
  Client client_;
};

/// Options of a cluster of the built actors, one thread each.
cluster::ClusterOptions actors(int count);

/// The demo model on cfg 2 × pp 2 with four patches, latents wanted.
Submission demo_job(int steps = 6);
/// The same on cfg 2 × ulysses 2: every actor has all blocks. Where `memory_limit` is what it
/// needs, no actor keeps it and `demo_job`'s part at the same time.
Submission whole_demo_job(int steps = 6);
/// Bytes that the job's plan foresees at its fullest actor.
std::uint64_t memory_of(const Submission& submission);
/// The tiny fixture on one actor.
Submission tiny_job(int steps = 4);

}  // namespace troupe::testing
