#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/deployments/environment.h"
#include "controller/jobs/job_table.h"
#include "controller/jobs/report.h"
#include "controller/recorder/recorder.h"
#include "controller/schedule/dispatcher.h"

namespace troupe::jobs {

/// Bytes of a cause that are kept: it must fit into messages beside other things.
constexpr std::size_t kLongestCause = 16'000;

struct RunnerOptions {
  /// Jobs that may run on one deployment at once, filling each other's gaps.
  std::size_t max_jobs_per_deployment = 4;
  /// Losses that a job outlives without getting a step further in between; 0 = none.
  int max_recoveries = 3;
  /// Pictures of jobs that compute as one, at most; 1 = none do.
  std::int64_t max_batch = 8;
  /// Seconds that a job waits for actors to come where too few are left for it.
  double rejoin_deadline = 0;
};

/// Hears what becomes of jobs.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void progress(const JobEntry&, const wire::JobProgress&) {}
  /// A job has failed and its watchers are not told yet: text may be added to the job's failure.
  virtual void failing(JobEntry&) {}
  /// A batch has failed, and its jobs are about to wait again, each for itself.
  virtual void batch_failing(const JobEntry& /*batch*/, const std::string& /*cause*/) {}
  virtual void finished(JobEntry&) {}
  /// A job has a new boundary.
  virtual void boundary(const JobEntry&) {}
  /// An ended job is no longer remembered.
  virtual void forgotten(const JobEntry&) {}
};

/// Returns the text for those who wait for a job that stands still at what is not finite.
inline std::string pause_text(const std::string& met) {
  return "it is paused: " + met;
}

/// Previews or latents after so many completed steps.
struct StepBlobs {
  std::int32_t step = 0;
  std::vector<wire::BlobRef> blobs;
};

/// Requests of a run to the runner that carries it.
class RunCallbacks {
 public:
  virtual ~RunCallbacks() = default;
  /// Tells the job's watchers how far it is. Interim results may be of an earlier step.
  virtual void tell(JobEntry& job, StepBlobs interim, std::vector<std::string> warnings) = 0;
  /// Ends a job, and its run, where it has one of its own.
  virtual void finish(JobId job, JobState state, wire::Failure failure) = 0;
  /// Closes a batch that no job computes in any more.
  virtual void close(JobId batch, JobState state, const std::string& why) = 0;
  /// Ends a run by its own fault; others on its deployment go on in a new epoch.
  virtual void fail(JobId run, const wire::Failure& failure) = 0;
  /// Interrupts all runs on the deployment, which prepares itself anew, or goes. Of several runs
  /// the loss counts for the culprit alone, where there is one.
  virtual void end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                         std::optional<JobId> culprit) = 0;
};

/// Objects and options that all runs of a runner have in common.
struct RunTools {
  cluster::Environment& environment;
  const cluster::Members& members;
  cluster::Deployments& deployments;
  JobTable& table;
  schedule::Dispatcher& dispatcher;
  RunCallbacks& callbacks;
  RunnerOptions options;
  recorder::Recorder* recorder;  // may be null
  JobListener* listener;

  /// Tells the recorder, if there is one.
  template <class Tell>
  void record(const Tell& tell) const {
    if (recorder) tell(*recorder, recorder::nanoseconds(environment.now()));
  }
};

/// Origin of a blob of a run.
struct Origin {
  std::uint32_t task = 0;
  std::int32_t step = 0;
  std::int32_t replica = 0;  // dp
  std::size_t index = 0;     // in the task's message
  std::int32_t first = 0;    // first picture of a result's part, counted in the replica
  bool result = false;       // a result; else a preview or latents of a step under way
};

/// Previews and latents by step and dp replica, until all replicas' parts of a step are here.
using Interim = std::map<std::int32_t, std::map<std::int32_t, wire::BlobRef>>;

/// Figures of a run for its report: what it has cost and how it went.
struct RunFigures {
  const cluster::Deployment& deployment;
  PhaseSeconds seconds;
  double began;
  const std::vector<wire::ActorJobStats>& stats;  // by rank
  std::uint64_t blob_bytes;
  const std::vector<std::string>& warnings;
};

/// Owner of a run: hands on what comes of the run, and tells how it ends. A run of one job has
/// OwnResults, that of several which compute as one has a Batch.
class Results {
 public:
  explicit Results(RunTools& tools) : tools_(tools) {}
  virtual ~Results() = default;

  /// Returns "job 3", or "batch 9 (jobs 3, 5)".
  virtual std::string name() const = 0;
  /// Returns the entries that what happens to the run is written to: its own, and those of a
  /// batch's jobs.
  virtual std::vector<JobEntry*> entries() = 0;
  /// Notes what the run waits for; "" = for nothing any longer.
  virtual void waits_for(const std::string& what) = 0;
  /// Tells the jobs' watchers that the run has come further.
  virtual void progress(const std::vector<std::string>& warnings) = 0;
  /// Takes warnings of the run's actors.
  virtual void warn(const std::vector<wire::Warning>& warnings) = 0;
  /// Takes a blob that has come, and is held here as `own`.
  virtual void take(const Origin& from, const wire::BlobRef& own, const std::string& bytes) = 0;
  /// Notes that the run's entry has a new boundary.
  virtual void boundary_kept() = 0;
  /// Lets go of all that has come and was not handed on.
  virtual void drop() = 0;
  /// Lets the run's jobs succeed: all results are here.
  virtual void succeed(const RunFigures& figures) = 0;
  /// Fails the run: it cannot go on.
  virtual void fail(const wire::Failure& why) = 0;
  /// Ends the run and its jobs like this.
  virtual void end(JobState state, const wire::Failure& failure) = 0;
  /// Notes that one of several jobs is about to end by itself.
  virtual void leaving(JobEntry&) {}
  /// Tells the others that a job has left. True when nobody is left.
  virtual bool is_left() { return false; }

 protected:
  /// Passes on a replica's preview or latents of a step under way, which go to the watchers when
  /// the parts of as many replicas as are `expected` are here.
  void pass_on(JobEntry& job, Interim& interim, int expected, const Origin& from,
               const wire::BlobRef& own);
  void drop_interim(Interim& interim);
  /// Adds the actors' warnings to the job, each once: a loss, a batch that failed or another dp
  /// replica has the same found once more.
  void say(JobEntry& job, const std::vector<wire::Warning>& warnings);
  /// Returns why the job's end cannot be told of; nothing when it can.
  static std::optional<std::string> check_message_size(const JobEntry& job);

  RunTools& tools_;
};

/// One job's own results.
class OwnResults final : public Results {
 public:
  OwnResults(RunTools& tools, JobEntry& job) : Results(tools), job_(job) {}

  std::string name() const override;
  std::vector<JobEntry*> entries() override { return {&job_}; }
  void waits_for(const std::string& what) override { job_.waits_for = what; }
  void progress(const std::vector<std::string>& warnings) override;
  void warn(const std::vector<wire::Warning>& warnings) override { say(job_, warnings); }
  void take(const Origin& from, const wire::BlobRef& own, const std::string& bytes) override;
  void boundary_kept() override;
  void drop() override;
  void succeed(const RunFigures& figures) override;
  void fail(const wire::Failure& why) override;
  void end(JobState state, const wire::Failure& failure) override;

 private:
  JobEntry& job_;
  std::map<std::pair<std::uint32_t, std::size_t>, wire::BlobRef> results_;  // by task and place
  Interim interim_;
};

}  // namespace troupe::jobs
