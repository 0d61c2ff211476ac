#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/jobs/results.h"

namespace troupe::jobs {

/// Seconds per step as the mean of the last few steps. Pure: times come in.
class StepClock {
 public:
  /// Notes that so many steps are done.
  void completed(std::int32_t step, double now);
  /// Forgets the times so far: the time until the next step is done is not counted.
  void restart() { times_.clear(); }
  /// Returns 0 while fewer than two steps are done: the first one's time has beginnings in it.
  double seconds_per_step() const;

 private:
  struct Mark {
    std::int32_t step;
    double time;
  };
  std::deque<Mark> times_;
};

/// A job, or several as one, between start and end: with its deployment, at its actors, and after a
/// loss from its last boundary on.
///
///   waiting ──begin──► computing ──end_if_drained──► ending ──succeed──► over
///      ▲                   │                            │
///      └────interrupt──────┘                            └──interrupt──► over
///
/// A run is over as well when it fails or is cancelled, in whatever state. What comes late, for an
/// earlier beginning or when the run is over, changes nothing.
class Run : public std::enable_shared_from_this<Run> {
 public:
  /// `entry`: the run's in the table, until the run is over.
  Run(RunTools& tools, JobEntry& entry, std::unique_ptr<Results> results);

  /// Returns the job's number, or the batch's.
  JobId id() const { return id_; }
  JobEntry& entry() { return entry_; }
  Results& results() { return *results_; }
  std::string name() const { return results_->name(); }
  /// Returns the run's deployment; null while the run waits for another one.
  const cluster::Deployments::Ptr& deployment() const { return deployment_; }
  /// True when actors were told of the run.
  bool has_begun() const { return state_ == State::computing || state_ == State::ending; }
  bool is_in_epoch(std::uint64_t epoch) const { return has_begun() && deployment_->epoch == epoch; }
  double seconds_per_step() const { return clock_.seconds_per_step(); }

  /// Gives the run a deployment, which may still have to load.
  void move_in(const cluster::Deployments::Ptr& deployment);
  /// Notes that the run has lost its deployment for good and waits for another one.
  void move_out();
  /// Begins the run on its deployment, which is ready: tells the actors of the run, and lets its
  /// tasks be issued: of a paused run those up to `last_step`. Throws what keeps the run from
  /// beginning.
  void begin(std::optional<int> last_step);
  /// Notes that an actor has done a task of the run. False when the actor had said so before, or
  /// has no part in the run.
  bool task_done(cluster::ActorId actor, const wire::TaskDone& done);
  /// Asks the actors for their figures when all tasks are done and all that they left is here; then
  /// the run succeeds.
  void end_if_drained();
  /// Stops the run when its epoch is over: nothing of it runs any more, it waits for its
  /// deployment. `counts`: that is a loss. False when the run has ended instead.
  bool interrupt(const wire::Failure& why, bool counts);
  /// Fails the run later. A failure that only says that a peer is gone waits for the one that says
  /// how it ended, until all actors of the run have answered that they live.
  void fail_later(wire::Failure failure);
  /// Makes the run's actors tell of what is not finite instead of failing.
  void watch();
  /// Notes that an actor has told of what is not finite: the run does not end, and has no newer
  /// boundary, until it begins again. False where that changes nothing: it was the second time, or
  /// the run is being cancelled.
  bool meet(wire::Failure what);
  /// Returns what the actors told first of what is not finite.
  const std::optional<wire::Failure>& met() const { return met_; }
  /// Ends the run early: at once when it waits, else when what is issued has drained.
  void cancel(const std::string& why);
  /// Counts seconds per step anew: the run was paused.
  void restart_clock() { clock_.restart(); }
  /// Tells people, now and in the run's report.
  void note(const std::string& warning);
  /// Ends the run: lets go of its deployment and of all that came.
  void release();

 private:
  enum class State { waiting, computing, ending, over };

  /// Wraps an action for later that is taken in this life of the run only.
  template <class Action>
  auto if_current(Action action) {
    return [weak = weak_from_this(), life = life_, action = std::move(action)](auto&&... given) {
      const auto run = weak.lock();
      if (run && run->state_ != State::over && run->life_ == life) action(*run, given...);
    };
  }
  void task_complete(const schedule::Task& task);
  /// Notes that so many steps are complete.
  void advance_to(std::int32_t step);
  void fetch_blobs(cluster::ActorId actor, const wire::TaskDone& done);
  void blob_arrived(const Origin& from, std::int32_t rank, const wire::BlobRef& ref,
                    const control::BlobResult& result);
  /// Handles a blob that could not be fetched. Without one that is not needed the run goes on.
  void blob_missing(const wire::BlobRef& ref, bool needed, const wire::Failure& why);
  /// Keeps a holder's part of a step's boundary, which counts when all parts are here.
  void keep_piece(std::int32_t step, std::int32_t rank, const wire::BlobRef& own);
  void find_holders();
  void drop(const std::map<std::int32_t, wire::BoundaryPiece>& pieces);
  /// Lets go of the parts of unfinished steps, and of results that were not handed on.
  void drop_blobs();
  void ask_for_figures();
  void succeed();
  void wait_for_cause();
  void look_for_cause();
  void ping_members();
  /// Ends the epoch of a cancelled run whose tasks have not drained in a moment, so that they are
  /// left in their midst; as soon as no other job is on its actors, which would lose its step.
  void leave_if_long();
  void leave();
  bool all_ready() const { return tools_.deployments.all_ready(*deployment_); }

  RunTools& tools_;
  const JobId id_;
  JobEntry& entry_;
  std::unique_ptr<Results> results_;
  cluster::Deployments::Ptr deployment_;
  State state_ = State::waiting;
  /// Number of times that the run began at actors: answers and blobs of an earlier beginning are
  /// nobody's.
  std::uint64_t life_ = 0;
  /// Ranks that have told that a task is done, task by task: once more changes nothing.
  std::vector<bool> told_;
  std::size_t blobs_to_come_ = 0;
  /// Pieces of boundaries by step and world rank, until all holders' pieces of a step are here.
  std::map<std::int32_t, std::map<std::int32_t, wire::BoundaryPiece>> pieces_;
  /// Dp replica and rows of each rank that holds latents.
  std::map<std::int32_t, std::pair<int, std::vector<wire::RowRange>>> held_rows_;
  std::size_t holders_ = 0;
  std::vector<std::string> warnings_;  // warnings of how it went; those of its actors are its jobs'
  std::uint64_t blob_bytes_ = 0;
  std::map<std::int32_t, int> replicas_past_;  // step → dp replicas that completed it
  std::map<std::int32_t, double> timesteps_;   // by step, as its actors said
  StepClock clock_;
  double began_ = 0;             // when it began for the first time
  std::int32_t first_step_ = 0;  // step that it began with
  double text_done_ = 0;
  double denoised_ = 0;
  double decoded_ = 0;
  int texts_done_ = 0;
  std::vector<wire::ActorJobStats> stats_;  // by rank
  std::size_t stats_to_come_ = 0;
  int losses_ = 0;       // since it last got a step further
  double lost_at_ = -1;  // the last of these
  std::optional<wire::Failure> collateral_;
  std::optional<wire::Failure> met_;
};

/// Lets go of the latents that the job could go on from.
void drop_boundary(JobEntry& job, cluster::Environment& environment);

}  // namespace troupe::jobs
