#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/deployments/memory_room.h"
#include "controller/jobs/reuse_stages.h"
#include "controller/plan/machine.h"
#include "controller/service/model_reader.h"
#include "controller/service/side_thread.h"
#include "transport/wire/client_messages.h"

namespace troupe::service {

struct ClusterFacts;
struct Tools;

/// Values that a job is planned from: what a thread needs to know of the cluster, as it was when
/// the plan was begun.
struct PlanInput {
  wire::JobSpec job;
  ModelReading reading;
  plan::Machine machine;
  int actors = 1;                                           // of one kind, which the job may have
  std::vector<std::pair<std::uint64_t, int>> memory_steps;  // as of cluster::Members
  cluster::Capacity capacity;
  jobs::KnownSplits splits;
};

struct PlannedJob {
  wire::Parallelism parallelism = {};  // never automatic
  plan::Plan plan = {};
  std::optional<wire::Failure> failure = {};  // why there is no plan
  /// The rank that no actor holds, and what would fit instead; where there are actors enough.
  std::optional<cluster::Shortage> shortage = {};
  std::string remedy = {};
};

/// Picks the degrees where they are automatic, and plans the job. Pure; takes up to a second of
/// processor time where there are a thousand actors.
PlannedJob plan_job(const PlanInput& input);

/// Plans jobs on a thread of its own, one after another, so that the controller's loop goes on. A
/// job's plan knows the stages of those that were accepted before it. A cluster that changes
/// meanwhile has the job planned again, unless its plan still holds. Belongs to the thread that
/// runs the loop.
class JobPlanner {
 public:
  using Make = std::function<PlannedJob(const PlanInput&)>;  // called on the thread
  struct Asked {
    wire::JobSpec job;
    ModelReading reading;
    /// Says whether the plan has to fit the actors that are there; not where others may come.
    bool must_fit = true;
    /// Returns why no plan is wanted any more; asked on the loop before and after each attempt.
    std::function<std::optional<wire::Failure>()> bar;
    /// Called once, on the loop.
    std::function<void(PlannedJob)> handler;
  };

  /// `facts` and `tools` are the owner's, and outlive this.
  JobPlanner(const ClusterFacts& facts, const Tools& tools);
  JobPlanner(const JobPlanner&) = delete;
  JobPlanner& operator=(const JobPlanner&) = delete;

  void plan(Asked asked);
  /// Returns the number of jobs that wait for their turn.
  std::size_t waiting() const { return queue_.size(); }
  /// True when the actors that are here now can compute the plan.
  bool holds(const plan::Plan& plan) const;

 private:
  struct Attempt {
    Asked asked;
    int number = 0;  // how many were made before
  };

  void begin_next();
  void begin(Attempt attempt);
  PlanInput input_of(const Asked& asked) const;
  void finish(Attempt attempt, const PlanInput& input, PlannedJob planned);

  const ClusterFacts& facts_;
  const Tools& tools_;
  Make make_;
  std::deque<Attempt> queue_;
  bool busy_ = false;
  SideThread thread_;
};

}  // namespace troupe::service
