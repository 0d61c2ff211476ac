#pragma once
#include <map>
#include <string>
#include <vector>

#include "controller/recorder/recorder.h"

namespace troupe::recorder {

/// Host and device of an actor, which place and name its row.
struct ActorFacts {
  std::string host;
  std::string device;
  std::uint32_t pid = 0;
};

struct TraceFacts {
  std::string controller_host;
  std::uint32_t controller_pid = 0;
  std::map<ActorId, ActorFacts> actors;
  Nanoseconds now = 0;  // the end of what has not ended
};

/// Returns the jobs' time line as JSON of Chrome trace events (chrome://tracing, Perfetto): a
/// process per host, a thread per actor, a slice per micro-step with the waits inside it, an arrow
/// for each tensor that a stage sent to the next, and the controller's own row with the jobs'
/// phases. Times are microseconds since the first of the jobs was submitted. Source: "Trace Event
/// Format" (Google).
std::string chrome_trace(const std::vector<const JobNotes*>& jobs, const TraceFacts& facts);

/// Makes one JSON document of what had happened when a job failed: the failure, the job's phases,
/// its epochs, the tasks that lay at actors unfinished, and the last events of the cluster. Times
/// are seconds before the failure, so at most 0. `run`: number under which the job's tasks ran, the
/// job's own or its batch's; for a batch that failed as a whole both are the batch's number.
std::string flight_record(const Recorder& recorder, JobId job, JobId run,
                          const std::string& failure, Nanoseconds now);

/// Returns the part of such a record that a user may see who may not know of other users' jobs: of
/// its events those of the job and of the run that it was part of. No record, nothing.
std::string own_part(const std::string& record, JobId job, JobId run);

/// Returns the job's task graph in its newest epoch as one JSON document: {job, name, paused,
/// not_finite, kept_steps, epoch, attempts, world, steps, actors: [by rank], tasks: [{id, name,
/// kind, stage, replica, step, patch, part, state, actors, at, after, seconds}]}. `name`: "job 3",
/// or "batch 9 (jobs 3, 5)", under whose number the tasks run. `state`: waiting (not issued),
/// issued (lies at the actors `at`, or runs there), done. `after`: tasks that must be issued before
/// it. `not_finite`: what the job is paused for, or null. `kept_steps`: those that a loss would not
/// cost, since the job would go on behind them.
std::string graph_text(const JobNotes& job, bool paused = false, const std::string& met = "",
                       int kept_steps = 0);

}  // namespace troupe::recorder
