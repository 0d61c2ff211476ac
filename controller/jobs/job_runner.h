#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/jobs/run.h"
#include "transport/wire/actor_messages.h"

namespace troupe::jobs {

/// Carries jobs from the queue to their end: keeps the queue and their places, and hands out the
/// tasks of those that run (run.h). Everything it does goes through Environment. It is the only one
/// that sends tasks to actors.
class JobRunner final : public cluster::DeploymentListener, private RunCallbacks {
 public:
  struct Tools {
    cluster::Environment& environment;
    const cluster::Members& members;
    cluster::Deployments& deployments;
    JobTable& table;
    RunnerOptions options = {};
    recorder::Recorder* recorder = nullptr;  // told of what happens; may be null
    /// Makes the plan of the job's request, refill steps included, on at most so many actors.
    /// Throws std::invalid_argument where there is none. Null: no job is elastic.
    std::function<plan::Plan(const JobEntry&, int actors)> plan_again = nullptr;
    /// Makes the plan of a request of several jobs, on the degrees that the first one's plan has
    /// now. Throws std::invalid_argument where there is none. Null: no jobs compute as one.
    std::function<plan::Plan(const JobEntry& first, const wire::ImageRequest&)> plan_batch =
        nullptr;
  };

  explicit JobRunner(Tools tools);
  ~JobRunner() override;
  /// Makes `listener` the only one that is told what becomes of jobs.
  void listen(JobListener& listener) { tools_.listener = &listener; }

  /// Starts queued jobs for which there are actors. Call when a job came in or actors became free.
  void start_queued();
  /// Ends a job early: at once when it waits or loads, or others compute with it; else when what is
  /// issued has drained.
  void cancel(JobId job, const std::string& why);
  /// Cancels a job that waits and whose end had been asked for of an earlier controller.
  void cancel_again(JobId job);
  /// Lets a job that waits fail.
  void give_up(JobId job, const wire::Failure& why);
  /// Lets go of ended jobs beyond what is kept.
  void expire();
  /// Pauses a job that has not ended: no more of its tasks are issued, but for those up to
  /// `last_step`, if any. `step` issues one task, and `resume` all again. A job that has not begun
  /// yet, or begins again, begins paused. False when there is nothing to do.
  bool pause(JobId job, int last_step = -1);
  bool step(JobId job);
  /// Lets a paused job go on. A job that was paused for what is not finite fails with that.
  bool resume(JobId job);
  /// Lets the job go on, and pauses it as soon as something that it makes is not finite. False when
  /// there is nothing to do.
  bool stop_at_not_finite(JobId job);
  /// Returns what the job is paused for; "" where it is not paused, or somebody has paused it.
  std::string met(JobId job) const;

  void task_done(cluster::ActorId actor, const wire::TaskDone& done);
  void task_failed(cluster::ActorId actor, const wire::TaskFailed& failed);
  /// Handles the loss of an actor's process. `cause` says how it ended. The actor's jobs go on from
  /// their boundaries once their deployment is whole again, or fail.
  void actor_lost(cluster::ActorId actor, const std::string& cause);
  void deployment_ready(const cluster::Deployments::Ptr& deployment) override;
  void deployment_failed(const cluster::Deployments::Ptr& deployment,
                         const wire::Failure& failure) override;
  void actor_free(cluster::ActorId actor) override;
  /// Stops the deployment's jobs, which wait for it to be whole again, or to fail; that is no loss.
  void interrupt_jobs(const cluster::Deployments::Ptr& deployment, const std::string& why);
  /// Places take no jobs any more. Jobs that wait and need more actors than are left, or larger
  /// ones, are planned for those that are left if they are elastic; others wait for hosts to join.
  void places_lost(const std::string& why);
  /// A job that waits has no turn until there are as many actors as it needs, and large enough. At
  /// the deadline it goes on with those that there are if it is elastic, or fails. `why` says how
  /// it came to lack them.
  void await_actors(JobId job, const std::string& why);
  /// Every job ends now, with this cause.
  void fail_all(const wire::Failure& why);

  /// True when all jobs of the deployment are elastic and have a plan that the actors which are
  /// left could hold.
  bool all_fit_elsewhere(const cluster::Deployment& deployment) const;
  /// Returns "job 3 step 5 patch 1 stage 0", or empty.
  std::string doing(cluster::ActorId actor) const;
  bool busy(cluster::ActorId actor) const { return dispatcher_.outstanding(actor) > 0; }
  const schedule::Dispatcher& dispatcher() const { return dispatcher_; }
  bool paused(JobId job) const { return paused_.contains(job); }
  /// Returns the number under which the job's tasks run or ran: that of its batch, where it is in
  /// one.
  JobId run_of(JobId job) const;
  /// Returns the jobs that run under this number.
  std::vector<JobId> jobs_of(JobId run) const;
  /// Returns "job 3", or "batch 9 (jobs 3, 5)".
  std::string name_of(JobId run) const;
  /// Returns why the job has not begun yet; "" when it has.
  std::string waits_for(const JobEntry& job) const;
  /// Returns why a job of this request will compute by itself whoever waits beside it; "" where it
  /// need not.
  std::string batching_obstacle(const wire::ImageRequest& request) const;

 private:
  using RunPtr = std::shared_ptr<Run>;

  // Methods of RunCallbacks:
  void tell(JobEntry& job, StepBlobs interim, std::vector<std::string> warnings) override;
  void finish(JobId job, JobState state, wire::Failure failure) override;
  void close(JobId batch, JobState state, const std::string& why) override;
  void fail(JobId run, const wire::Failure& failure) override;
  void end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                 std::optional<JobId> culprit) override;

  /// Same as above, but where the deployment is lost while it prepares itself, `while_preparing`
  /// says whether that counts for runs which wait for it.
  void end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                 std::optional<JobId> culprit, bool while_preparing);
  /// Lets a run fail once the caller, who may be in the midst of that run, has returned.
  void fail_soon(JobId run, wire::Failure failure);
  void start_soon();
  bool start(JobEntry& job);
  /// Lets the job begin as one with others that wait. False where it has to begin alone.
  bool start_batch(const JobEntry& first);
  /// True when somebody stops this job by itself, which must not stop others with it.
  bool stops_alone(JobId job) const { return paused(job) || watched_.contains(job); }
  /// Returns the first job, and those that wait beside it and do not stop alone, in their order.
  std::vector<const JobEntry*> waiting_with(const JobEntry& first) const;
  /// Returns why the job is about to begin by itself, for its client; "" where it does not ask for
  /// a batch.
  std::string why_not_batched(const JobEntry& first) const;
  /// True when there is a deployment for the job, or idle actors.
  bool has_place(const JobEntry& job) const;
  /// Returns the batch under way that the job computes in; null where it computes in none.
  RunPtr batch_with(const JobEntry& job) const;
  /// Returns nothing when some actors are large enough for the job, whatever else they keep now. If
  /// not, an elastic job is planned for what there is; any other job cannot go on, for the reason
  /// returned.
  std::optional<wire::Failure> check_capacity(JobEntry& job);
  /// Returns whether there are as many actors as the job needs, or the job is elastic and planned
  /// for those that there are.
  bool has_actors(JobEntry& job);
  /// Jobs for which actors have come take their turns again.
  void look_for_actors();
  void stop_awaiting(JobId job);
  /// Some actor has not said yet how much it may hold.
  bool sizes_unknown() const;
  /// Returns how many actors there are for the job, and why these are not enough, as words.
  std::string actors_here(const JobEntry& job) const;
  /// Says why the first job in the queue waits; those behind it wait for that. `run`: the job's
  /// own, if it has begun before.
  void say_why_waiting(JobEntry& first, Run* run);
  /// Returns a deployment for the job's plan: one that is there, or one that begins to load.
  cluster::Deployments::Ptr find_deployment(const JobEntry& job);
  void add_run(JobEntry& entry, std::unique_ptr<Results> results,
               const cluster::Deployments::Ptr& deployment);
  void move_in(Run& run, const cluster::Deployments::Ptr& deployment);
  void begin(Run& run);
  /// Brings an elastic job that needs more than so many actors down to them. False when it cannot
  /// go on.
  bool fit(JobEntry& job, int actors);
  /// Lets a run that has lost its deployment for good wait for another one. False when it cannot.
  bool move_out(Run& run, int survivors);
  /// Counts the actors that nobody but these runs has, now or soon; of the kind that has most of
  /// them.
  int survivors_of(const std::vector<RunPtr>& runs, WeightChoice weight_dtype) const;
  /// Sends tasks that may go now. Must be called after something was changed at the dispatcher.
  void pump();
  /// Same as pump, but once this turn of the loop has brought all that it brings: one decision for
  /// many ends of tasks that came together.
  void pump_soon();
  /// Lets go of the previews and latents of the job's last steps, when clients have had time to
  /// fetch them.
  void forget_interim(JobEntry& job);
  void drop_run(JobId run);
  RunPtr find(JobId run) const;
  std::vector<RunPtr> runs_on(const cluster::Deployment& deployment) const;
  /// Returns the runs that wait for another deployment.
  std::vector<RunPtr> unplaced() const;

  schedule::Dispatcher dispatcher_;
  JobListener nobody_;
  RunTools tools_;
  const decltype(Tools::plan_again) plan_again_;
  const decltype(Tools::plan_batch) plan_batch_;
  std::map<JobId, RunPtr> runs_;
  std::map<JobId, int> paused_;  // and the last step that each may compute
  std::set<JobId> watched_;      // that are to be paused where something is not finite
  struct Awaiting {
    std::string why;
    double until = 0;
  };
  std::map<JobId, Awaiting> awaiting_;  // actors
  std::string last_loss_ = "actors have left";
  bool start_posted_ = false;
  bool pump_posted_ = false;
  JobId waits_first_ = 0;  // job for which there was no place when last looked
};

}  // namespace troupe::jobs
