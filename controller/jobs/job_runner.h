#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/deployments/environment.h"
#include "controller/deployments/members.h"
#include "controller/jobs/job_table.h"
#include "controller/jobs/step_clock.h"
#include "controller/recorder/recorder.h"
#include "controller/schedule/dispatcher.h"
#include "transport/wire/actor_messages.h"

namespace troupe::jobs {

struct PhaseSeconds;
struct Portion;
/// Previews and latents by step and dp replica, until all replicas' parts of a step are here.
using Interim = std::map<std::int32_t, std::map<std::int32_t, wire::BlobRef>>;

struct RunnerOptions {
  /// Jobs that may run on one deployment at once, filling each other's gaps.
  std::size_t max_jobs_per_deployment = 4;
  /// Losses that a job outlives without getting a step further in between; 0 = none.
  int max_recoveries = 3;
  /// Pictures of jobs that compute as one, at most; 1 = none do.
  std::int64_t max_batch = 8;
};

/// Carries jobs from the queue to their end: deployment, begin, dispatch, results, report; and
/// after a loss from their last boundary on. Everything it does goes through Environment. It is the
/// only one that sends tasks to actors.
class JobRunner {
 public:
  struct Tools {
    cluster::Environment& environment;
    cluster::Members& members;
    cluster::Deployments& deployments;
    JobTable& table;
    RunnerOptions options = {};
    std::function<void(const JobEntry&, wire::JobProgress)> on_progress;
    std::function<void(JobEntry&)> on_finished;
    std::function<void(const JobEntry&)> on_boundary = [](const JobEntry&) {};
    /// An ended job is no longer remembered.
    std::function<void(const JobEntry&)> on_forgotten = [](const JobEntry&) {};
    recorder::Recorder* recorder = nullptr;  // told of what happens; may be null
    /// A job has failed and its watchers are not told yet: its failure's text may be added to.
    std::function<void(JobEntry&)> on_failing = [](JobEntry&) {};
    /// A batch has failed, and its jobs are about to wait again, each for itself.
    std::function<void(const JobEntry& batch, const std::string& cause)> on_batch_failing =
        [](const JobEntry&, const std::string&) {};
    /// The plan of the job's request, refill steps included, on at most so many actors. Throws
    /// std::invalid_argument where there is none. Null: no job is elastic.
    std::function<plan::Plan(const JobEntry&, int actors)> plan_again = nullptr;
    /// The plan of that request, of several jobs, on the degrees that the first one's plan has now.
    /// Throws std::invalid_argument where there is none. Null: no jobs compute as one.
    std::function<plan::Plan(const JobEntry& first, const wire::ImageRequest&)> plan_batch =
        nullptr;
  };

  explicit JobRunner(Tools tools);
  ~JobRunner();

  /// Starts queued jobs for which there are actors. Call when a job came in or actors became free.
  void start_queued();
  /// Ends a job early: at once when it waits or loads, or others compute with it; else when what is
  /// issued has drained.
  void cancel(JobId job, const std::string& why);
  /// A job that waits and whose end had been asked for of an earlier controller.
  void cancel_again(JobId job);
  /// A job that waits fails.
  void give_up(JobId job, const wire::Failure& why);
  /// Lets go of ended jobs beyond what is kept.
  void expire();
  void task_done(cluster::ActorId actor, const wire::TaskDone& done);
  void task_failed(cluster::ActorId actor, const wire::TaskFailed& failed);
  /// An actor's process is gone. `cause` says how. Its jobs go on from their boundaries once its
  /// deployment is whole again, or fail.
  void actor_lost(cluster::ActorId actor, const std::string& cause);
  /// Of Deployments::Events.
  void deployment_ready(const cluster::Deployments::Ptr& deployment);
  void deployment_failed(const cluster::Deployments::Ptr& deployment, const wire::Failure& failure);
  /// The deployment's jobs stop and wait for it to be whole again, or to fail; that is no loss.
  void interrupt_jobs(const cluster::Deployments::Ptr& deployment, const std::string& why);
  /// All its jobs are elastic and have a plan that the actors which are left could hold.
  bool all_fit_elsewhere(const cluster::Deployment& deployment) const;
  /// Jobs that wait for more actors than the cluster will ever have again are planned for those
  /// that are left, if they are elastic; others fail, with this cause.
  void fail_unplaceable(const std::string& why);
  /// Every job ends now, with this cause.
  void fail_all(const wire::Failure& why);
  /// "job 3 step 5 patch 1 stage 0", or empty.
  std::string doing(cluster::ActorId actor) const;
  bool busy(cluster::ActorId actor) const { return dispatcher_.outstanding(actor) > 0; }
  const schedule::Dispatcher& dispatcher() const { return dispatcher_; }
  /// Of a job that has not ended: no more of its tasks are issued, one is, or all are again. A job
  /// that has not begun yet, or begins again, begins paused. False when there is nothing to do.
  bool pause(JobId job);
  bool step(JobId job);
  bool resume(JobId job);
  bool paused(JobId job) const { return paused_.contains(job); }
  /// The number under which the job's tasks run or ran: of its batch, where it is in one.
  JobId run_of(JobId job) const;
  /// The jobs that run under this number.
  std::vector<JobId> jobs_of(JobId run) const;
  /// "job 3", or "batch 9 (jobs 3, 5)".
  std::string name_of(JobId run) const;
  /// Why a job of this request will compute by itself whoever waits beside it; "" where it need
  /// not.
  std::string batching_obstacle(const wire::ImageRequest& request) const;
  /// Sends what may go now; after something was changed at the dispatcher.
  void pump();

 private:
  struct Run;
  /// Where a blob of a batch comes from: its step or result, dp replica and place in the message.
  struct Origin {
    std::int32_t step = 0;
    std::int32_t replica = 0;
    std::size_t index = 0;
    bool result = false;
  };

  bool start(JobEntry& job);
  /// The job begins as one with others that wait. False where it has to begin alone.
  bool start_batch(const JobEntry& first);
  /// The first, and those that wait beside it and are not paused, in their order.
  std::vector<const JobEntry*> waiting_with(const JobEntry& first) const;
  /// Why it is about to begin by itself, for its client; "" where it does not ask for a batch.
  std::string why_not_batched(const JobEntry& first) const;
  /// There is a deployment for it, or idle actors.
  bool has_place(const JobEntry& job) const;
  /// The job computes in a batch that is under way.
  bool in_batch(const JobEntry& job) const;
  /// What is said of a run is said of these: its own entry, and the members of a batch.
  std::vector<JobEntry*> entries_of(JobEntry& run);
  void tell_batch_members(const JobEntry& batch);
  void warn(Run& run, const std::vector<wire::Warning>& warnings);
  /// To each member what is its own.
  void hand_out(Run& run, const Origin& from, const wire::BlobRef& whole, const std::string& bytes);
  void succeed_together(Run& run, const PhaseSeconds& seconds);
  /// The batch has failed: its jobs wait again, each for itself.
  void retry_alone(Run& run, const wire::Failure& why);
  /// A run cannot go on: a job fails, those of a batch try it alone.
  void fail_or_retry(Run& run, const wire::Failure& why);
  /// The batch and all its members end like this.
  void end_batch(JobEntry& batch, wire::JobState state, const wire::Failure& failure);
  void close_batch(JobEntry& batch, const std::string& state);
  /// A member is charged with its part of the batch's time, by pictures.
  void charge_part(const JobEntry& batch, JobId member, double now);
  /// A member is about to end: it is charged, and what the batch has for it goes.
  void settle(JobEntry& member);
  /// A member has ended: the others go on, and without any the batch stops.
  void left_batch(JobId batch);
  void drop_portion(Portion& portion);
  /// Ends a run early, as `cancel` does a job.
  void cancel_run(JobEntry& job, const std::string& why);
  /// Of a cancelled run whose tasks have not drained in a moment the epoch is ended, so that they
  /// are left in their midst; as soon as no other job is on its actors, which would lose its step.
  void leave_if_long(JobId id, std::uint64_t life);
  /// Actors and blobs of a run that is over.
  void release(JobId id, JobEntry& job, bool succeeded);
  /// Some actors are large enough for it, whatever else they keep now. If not, an elastic job is
  /// planned for what there is, and any other one fails.
  bool can_ever_fit(JobEntry& job);
  /// The first in the queue, and those behind it.
  void say_why_waiting(JobEntry& first);
  /// A deployment for the job's plan: one that is there, or one that begins to load.
  cluster::Deployments::Ptr find_deployment(const JobEntry& job);
  void move_in(Run& run, const cluster::Deployments::Ptr& deployment);
  void launch(Run& run);
  /// Brings an elastic job that needs more than so many actors down to them. False when it cannot
  /// go on.
  bool fit(JobEntry& job, int actors);
  /// A job that has lost its deployment for good waits for another one. False when it cannot.
  bool move_out(Run& run, int survivors);
  /// Actors that nobody but these jobs has, now or soon; of the kind that has most of them.
  int survivors_of(const std::vector<JobId>& jobs, WeightChoice weight_dtype) const;
  void task_complete(Run& run, std::uint32_t task);
  void take_blobs(Run& run, cluster::ActorId actor, const wire::TaskDone& done);
  /// The blob as the controller holds it now; nothing when the job is over or failed by it. Without
  /// one that is not `needed` the job goes on.
  std::optional<wire::BlobRef> blob_arrived(Run& run, const wire::BlobRef& ref, bool needed,
                                            const control::BlobResult& result);
  /// A replica's preview or latents of a step under way: goes to the watchers when the parts of as
  /// many replicas as are `expected` are here.
  void pass_on(JobEntry& job, Interim& interim, int expected, const Origin& from,
               const wire::BlobRef& own);
  /// A holder's part of a step's boundary; it counts when all are here.
  void keep_piece(Run& run, std::int32_t step, std::int32_t rank, const wire::BlobRef& own);
  void drop_boundary(JobEntry& job);
  /// Lets go of the parts of unfinished steps, and of the results unless the job has succeeded.
  void forget_blobs(Run& run, JobEntry& job, bool succeeded);
  /// Lets go of what its last steps left, when clients have had time to fetch it.
  void forget_interim(JobEntry& job);
  void maybe_end(Run& run);
  void end_at_actors(Run& run);
  void succeed(Run& run);
  /// The job's epoch is over: nothing of it runs any more, it waits for its deployment. False when
  /// it has ended instead.
  bool interrupt(Run& run, const wire::Failure& why, bool counts);
  /// All jobs of the deployment are interrupted, and it prepares itself anew, or goes.
  void end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                 std::optional<JobId> culprit, bool while_preparing = false);
  /// Ends a job by its own fault; others on its deployment go on in a new epoch.
  void fail(JobId job, const wire::Failure& failure);
  /// A failure that only says that a peer is gone waits for the one that says how it ended, until
  /// all actors of the run have answered that they live.
  void fail_later(Run& run, wire::Failure failure);
  void wait_for_cause(JobId job, std::uint64_t life);
  void call_roll(const Run& run);
  bool all_ready(const cluster::Deployment& deployment) const;
  /// Not before the caller, who may be in the midst of that job, has returned.
  void fail_soon(JobId job, wire::Failure failure);
  void finish(JobId job, wire::JobState state, wire::Failure failure);
  void progress(JobEntry& job, std::vector<wire::BlobRef> blobs = {},
                std::vector<std::string> warnings = {});
  Run* find(JobId job);
  /// The same life of the run that the caller knew.
  Run* find(JobId job, std::uint64_t life);
  std::vector<JobId> jobs_on(const cluster::Deployment& deployment) const;
  JobEntry& entry(const Run& run);
  /// Tells the recorder, if there is one.
  template <class Tell>
  void record(const Tell& tell) {
    if (tools_.recorder) tell(*tools_.recorder, std::llround(tools_.environment.now() * 1e9));
  }

  Tools tools_;
  schedule::Dispatcher dispatcher_;
  std::map<JobId, std::unique_ptr<Run>> runs_;
  std::set<JobId> paused_;
};

}  // namespace troupe::jobs
