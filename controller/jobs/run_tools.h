#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/deployments/environment.h"
#include "controller/jobs/job_table.h"
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
  virtual void close(JobId batch, const std::string& how) = 0;
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
  RunCallbacks& carrier;
  RunnerOptions options;
  recorder::Recorder* recorder;  // may be null
  JobListener* listener;

  /// Tells the recorder, if there is one.
  template <class Tell>
  void record(const Tell& tell) const {
    if (recorder) tell(*recorder, recorder::nanoseconds(environment.now()));
  }
};

}  // namespace troupe::jobs
