#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "controller/gateway/tools.h"
#include "controller/journal/journal.h"

namespace troupe::gateway {

/// Jobs whose controller or client went away: those of an earlier controller go on once they are
/// planned anew and there are actors for them; those without a client wait for it for a while.
class RestoredJobs {
 public:
  RestoredJobs(const Tools& tools, ModelReader& reader, JobPlanner& planner)
      : tools_(tools), reader_(reader), planner_(planner) {}

  /// Takes up jobs of an earlier controller, held in the table. `cause`: how that controller ended.
  void take_up(const journal::Revival& revival, const std::string& cause);
  /// Waits for the client of a job that is nobody's now. The job is cancelled with that cause when
  /// it is still nobody's after the grace.
  void await_client(jobs::JobId job, const std::string& cause);
  /// Stops taking jobs up. With a journal, jobs that have not ended stay in it as they are.
  void close() { closed_ = true; }

 private:
  /// Has the job planned, if what was read is what it came in with.
  void plan(jobs::JobId job, const std::string& cause, const ModelReading& reading);
  void take_up(jobs::JobId job, const std::string& cause, const ModelReading& reading,
               PlannedJob planned);
  /// Returns the job while it is to be taken up; null when it has ended, or no job is.
  jobs::JobEntry* awaited(jobs::JobId job);
  void give_up(jobs::JobId job, const std::string& cause, const std::string& why);

  const Tools& tools_;
  ModelReader& reader_;
  JobPlanner& planner_;
  bool closed_ = false;
  std::map<jobs::JobId, std::uint64_t> away_;  // jobs whose client is awaited, and the absence
  std::uint64_t absences_ = 0;
};

}  // namespace troupe::gateway
