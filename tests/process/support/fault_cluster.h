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
#include "troupe/inspect.h"

namespace troupe::testing {

/// Failure of a job: its error, and how long after the blow it came.
struct Fall {
  Error error;
  double seconds = 0;
};
/// The most that a fall may take that comes by itself: far from any deadline of a task or a group,
/// and more than a busy machine keeps a process from running. How soon it comes on a quiet machine
/// is measured by benchmarks/faults.cpp.
inline constexpr double kAtOnce = 30;

/// Same as the members of FaultCluster of these names, for any cluster.
void hold_actor(Inspector& inspector, std::uint32_t actor, const HoldAt& at);
ActorInfo held_actor(Client& client, std::uint32_t actor);
void release_actor(Inspector& inspector, std::uint32_t actor);
bool keeps_steps(Inspector& inspector, std::uint64_t job, int steps);

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
  /// Runs a job that actor 0 takes part in, holds that one at `step`, and strikes actors once all
  /// steps before are kept. Throws where the job does not go on from there.
  JobResult struck(const Submission& submission, int step, const Blow& blow);

  Inspector& inspector() { return inspector_; }
  /// Makes the actor hold when it comes to that place.
  void hold(std::uint32_t actor, const HoldAt& at);
  /// Waits until the actor is held; returns what status says of it then. Throws when it does not
  /// come there.
  ActorInfo held(std::uint32_t actor);
  void release(std::uint32_t actor);
  /// Waits until so many steps of the job are kept; false when they do not come.
  bool keeps(std::uint64_t job, int steps);
  /// An actor of that stage, where the newest deployment has several.
  std::uint32_t actor_of_stage(int stage);
  /// SIGSTOP or SIGCONT for all actors.
  void freeze();
  void thaw();
  /// Waits for the job's end and measures since `blow`; nothing when it succeeded.
  std::optional<Fall> fall_of(std::uint64_t job, std::chrono::steady_clock::time_point blow);

 private:
  cluster::Cluster cluster_;
  Client client_;
  Inspector inspector_;
};

/// Options of a cluster of the built actors, one thread each.
cluster::ClusterOptions actors(int count);

/// The demo model on cfg 2 × pp 2 with four patches, latents wanted.
Submission demo_job(int steps = 6);
/// Same as `demo_job`, but on cfg 2 × ulysses 2: every actor has all blocks. Where `memory_limit`
/// is what this job needs, no actor keeps its part and `demo_job`'s at the same time.
Submission whole_demo_job(int steps = 6);
/// Bytes that the job's plan foresees at its fullest actor.
std::uint64_t memory_of(const Submission& submission);
/// The tiny fixture on one actor.
Submission tiny_job(int steps = 4);

}  // namespace troupe::testing
