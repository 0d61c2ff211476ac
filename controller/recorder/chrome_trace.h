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

}  // namespace troupe::recorder
