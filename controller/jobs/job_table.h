#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "transport/wire/client_messages.h"

namespace troupe::jobs {

using JobId = std::uint64_t;

/// One job's record. Times are seconds on the caller's clock.
struct JobEntry {
  JobId id = 0;
  wire::JobSpec spec;
  plan::Plan plan;
  std::uint64_t fingerprint = 0;  // of the model's folder when it was planned; 0 = not known
  wire::JobState state = wire::JobState::queued;
  std::string phase = "queued";
  std::int32_t step = 0;
  bool detached = false;
  bool cancel_asked = false;
  std::uint64_t owner = 0;           // peer that submitted it
  std::set<std::uint64_t> watchers;  // peers that are told of its progress and end
  double submitted = 0;
  double started = 0;
  double ended = 0;
  wire::Failure failure;
  std::vector<wire::BlobRef> blobs;  // results, held by the controller
  std::deque<std::vector<wire::BlobRef>>
      interim;  // previews and latents of its last steps, a step an entry
  std::string report;
};

/// Every job from submission to its one end. A pure state machine: no I/O, no clock.
class JobTable {
 public:
  /// `max_queued`: how many may wait. `max_kept`: how many ended ones are remembered.
  JobTable(std::size_t max_queued, std::size_t max_kept)
      : max_queued_(max_queued), max_kept_(max_kept) {}

  /// Queues a job; nothing when the queue is full.
  std::optional<JobId> add(wire::JobSpec spec, plan::Plan plan, std::uint64_t owner, bool detached,
                           double now, std::uint64_t fingerprint = 0);
  JobEntry* find(JobId id);
  const std::map<JobId, JobEntry>& all() const { return jobs_; }
  /// Jobs that wait, oldest first.
  const std::deque<JobId>& queue() const { return queue_; }
  std::int32_t position(JobId id) const;

  /// queued → loading. False from any other state.
  bool start(JobId id, double now);
  /// loading → running.
  bool run(JobId id);
  /// Ends a job; false when it has ended before: a job ends exactly once.
  bool finish(JobId id, wire::JobState terminal, wire::Failure failure, double now);
  /// Ended jobs beyond `max_kept`, oldest first: forgotten, and returned so that their blobs can
  /// go.
  std::vector<JobEntry> expire();

  std::size_t count(wire::JobState state) const;
  std::size_t ended_count() const { return ended_total_; }

 private:
  std::size_t max_queued_;
  std::size_t max_kept_;
  JobId next_id_ = 1;
  std::size_t ended_total_ = 0;
  std::map<JobId, JobEntry> jobs_;
  std::deque<JobId> queue_;
  std::deque<JobId> ended_;
};

}  // namespace troupe::jobs
