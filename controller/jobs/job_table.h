#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/plan/plan.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/job.h"
#include "transport/wire/job_field.h"

namespace troupe::jobs {

/// A blob that a request starts from, and the field that it is sent along by. Of pictures also the
/// sides, in pixels; else null.
template <class Number, class Side>
struct InputBlob {
  wire::JobField field;
  Number* id;  // 0 = none
  Number* bytes;
  Side* height = nullptr;
  Side* width = nullptr;
};

/// Returns all inputs that a request may have.
template <class Request>
auto input_blobs(Request& request) {
  using Number = std::remove_pointer_t<decltype(&request.init_latents_blob)>;
  using Side = std::remove_pointer_t<decltype(&request.init_image_height)>;
  using wire::JobField;
  std::vector<InputBlob<Number, Side>> blobs{
      {JobField::init_latents, &request.init_latents_blob, &request.init_latents_bytes},
      {JobField::init_image, &request.init_image_blob, &request.init_image_bytes,
       &request.init_image_height, &request.init_image_width},
      {JobField::mask_image, &request.mask_image_blob, &request.mask_image_bytes,
       &request.mask_image_height, &request.mask_image_width}};
  const auto add = [&](JobField field, auto& picture) {
    blobs.push_back({field, &picture.blob, &picture.bytes, &picture.height, &picture.width});
  };
  for (auto& image : request.images)
    add(JobField::images, image);
  add(JobField::last_image, request.last_image);
  for (auto& image : request.control_images)
    add(JobField::control_images, image);
  blobs.push_back(
      {JobField::prompt_embeds, &request.prompt_embeds_blob, &request.prompt_embeds_bytes});
  return blobs;
}

using JobId = std::uint64_t;

/// Point at which a job can be taken up again: after a step that has left the last stage
/// everywhere, with the latents and sampler histories of that moment, held by the controller.
struct Boundary {
  std::int32_t next_step = 0;
  std::vector<wire::BoundaryPiece> pieces;
};

/// Recovery of a job after its deployment's epoch had ended.
struct Recovery {
  std::string cause;
  std::int32_t step = 0;  // step that it went on with
  double began = 0;       // the loss
  double resumed = 0;     // when its actors were told to begin again; 0 = not yet
};

/// A run of steps that a job computed on one mesh.
struct JobPart {
  std::int32_t first_step = 0;
  mesh::Degrees degrees;
};

/// Client that handed a job in, and those who hear of it. ClientService writes it.
struct JobClient {
  std::uint64_t key = 0;    // of the submission, so that none counts twice; 0 = none
  std::uint64_t owner = 0;  // peer that submitted it; 0 = it has not come back yet
  std::uint64_t number =
      0;               // client that it counts for; stays when the owner comes back as another peer
  std::string user;    // user whose key it came in with; "" = nobody was asked for one
  bool apart = false;  // its user may not know of other users' jobs
  bool adopted = false;  // the owner has only waited for it: its client may still come back
  std::set<std::uint64_t> watchers;  // peers that are told of its progress and end
  bool detached = false;
  bool unreported = false;  // it has ended, but nobody is to be told yet: until then it is kept
};

/// Course of a job so far: what it goes on from, and what befell it. Written by the run; `restarts`
/// and `restart_step` by the journal.
struct JobCourse {
  std::optional<Boundary> boundary;
  std::vector<Recovery> recoveries;
  std::vector<JobPart> parts;  // meshes that it computed on; of elastic jobs more than one
  std::int32_t restarts = 0;   // restarts of the controller while it ran, without a step between
  std::int32_t restart_step = 0;
};

/// Results of a job. Written by the run.
struct JobOutcome {
  std::vector<wire::BlobRef> blobs;  // results, held by the controller
  std::deque<std::vector<wire::BlobRef>>
      interim;  // previews and latents of its last steps, a step an entry
  std::string report;
  std::vector<std::string> warnings;  // of its actors, each once however often its tasks ran
};

/// Cost of a job to its share. Written by the table.
struct JobCost {
  double actor_seconds = 0;  // charged so far
  double before = 0;         // actor-seconds before it began, this time
};

/// Batch of a job, or why it computes by itself.
struct JobBatching {
  JobId number = 0;     // of the batch that it computes or has computed in; 0 = by itself
  bool alone = false;   // a batch that it was in has failed: never again with others
  std::string why_not;  // why it began by itself, although it may batch
};

/// Record of one job, or of several that compute as one. Times are seconds on the caller's clock.
struct JobEntry {
  JobId id = 0;
  wire::JobSpec spec;  // as it was handed in
  plan::Plan plan;     // plan whose request is the one that is computed: completed, and refilled
  std::uint64_t fingerprint = 0;  // of the model's folder when it was planned; 0 = not known
  std::shared_ptr<const spec::ModelSpec> model;  // it was planned for; null = it stays as planned
  JobState state = JobState::queued;
  JobPhase phase = JobPhase::queued;
  std::int32_t step = 0;
  std::optional<double> timestep;  // the sampler's, of the last of these; nothing while not known
  bool held = false;               // it is not to begin yet, although it is queued
  bool cancel_asked = false;
  /// Reason why the job has not begun yet, as of the last look; empty for a job behind the first in
  /// the queue (JobRunner::waits_for). Whoever holds the job says why.
  std::string waits_for;
  double submitted = 0;
  double started = 0;
  double ended = 0;
  wire::Failure failure;
  JobClient client;
  JobCourse course;
  JobOutcome outcome;
  JobCost cost;
  JobBatching batching;
};

/// A job that computes as one with others.
struct BatchMember {
  JobId job = 0;
  wire::RowRange pictures;  // pictures of the batch that are its own
};

/// Several jobs that compute as one.
struct BatchEntry {
  JobEntry run;                      // under a number of its own; it is no job
  std::vector<BatchMember> members;  // also those that have left it
};

/// Returns who a job counts for when shares are made fair: the name in its spec, else the client; a
/// job of an earlier controller, whose client is not known any more, counts for itself.
std::string share_of(const JobEntry& job);

/// True when each job may be named to the other's user, and may compute with the other.
bool may_meet(const JobEntry& a, const JobEntry& b);

/// Table of every job from submission to its one end. A pure state machine: no I/O, no clock.
class JobTable {
 public:
  /// `max_queued`: number of jobs that may wait. `max_kept`: number of ended jobs that are
  /// remembered. `max_kept_bytes`: bytes of their results that are kept, the newest job's aside.
  JobTable(std::size_t max_queued, std::size_t max_kept, std::uint64_t max_kept_bytes = 4ull << 30)
      : max_queued_(max_queued), max_kept_(max_kept), max_kept_bytes_(max_kept_bytes) {}

  /// Queues a job; nothing when the queue is full.
  std::optional<JobId> add(wire::JobSpec spec, plan::Plan plan, std::uint64_t owner, bool detached,
                           double now, std::uint64_t fingerprint = 0);
  /// Adds a job of an earlier controller, under its own number: an ended one as the newest of
  /// these, any other queued again and held, whatever its state was.
  void restore(JobEntry job);
  /// Makes numbers go on from `next`.
  void count_from(JobId next) { next_id_ = std::max(next_id_, next); }
  /// Holds a queued job: it waits without a turn in the queue, for `what`, until it is let go.
  /// False unless it is queued.
  bool hold(JobId id, const std::string& what);
  bool let_go(JobId id);
  /// Removes a job that came to nothing before anybody was told of it. False unless it is queued.
  bool withdraw(JobId id);
  JobEntry* find(JobId id);
  /// Returns the job with that key, which is not 0.
  JobEntry* find_key(std::uint64_t key);
  const std::map<JobId, JobEntry>& all() const { return jobs_; }
  /// Returns the jobs that wait, in the order in which they are to be started: higher priority
  /// first, then the share that has had least (what waits before counts as had), then the older
  /// job.
  std::vector<JobId> queue() const;
  /// Returns the first job of the queue, at the cost of the shares that wait; nothing when no job
  /// waits.
  std::optional<JobId> first() const;
  std::int32_t position(JobId id) const;

  /// Changes queued → loading. False from any other state.
  bool start(JobId id, double now);
  /// Changes loading → running; for a batch, with its members.
  bool run(JobId id);
  /// Lets queued jobs, the members of `batch`, begin as one: the batch gets a number from the same
  /// count as jobs and is loading, as its members are then. It is no job: `find`, `all`, `queue`
  /// and `count` know its members.
  BatchEntry& join(BatchEntry batch, double now);
  /// Returns what runs under that number: a job, or a batch.
  JobEntry* find_run(JobId id);
  const BatchEntry* find_batch(JobId id) const;
  /// Returns the jobs of the batch that have not ended, nor left it.
  std::vector<JobId> members_of(JobId batch) const;
  /// Lets a job that has begun wait again where it waited before; it computes alone from now on.
  bool requeue(JobId id);
  /// Removes a batch that is over and has no members any more.
  void dissolve(JobId batch) { batches_.erase(batch); }
  const std::map<JobId, BatchEntry>& batches() const { return batches_; }

  /// Charges a job with what it has cost its share: seconds × actors, in one sum or in several. A
  /// job that was charged with nothing since it began is charged with its time on all its actors
  /// when it ends.
  void charge(JobId id, double actor_seconds);
  /// Returns what the share has had while it had jobs that were not ended.
  double service(const std::string& share) const;
  /// Ends a job; false when it has ended before: a job ends exactly once.
  bool finish(JobId id, JobState terminal, wire::Failure failure, double now);
  /// Forgets ended jobs beyond what is kept, oldest first, and returns them so that their blobs can
  /// go. Jobs of whose end nobody has been told yet stay, and do not count.
  std::vector<JobEntry> expire();

  std::size_t count(JobState state) const;
  std::size_t ended_count() const { return ended_total_; }

 private:
  struct Share {
    double service = 0;  // seconds × actors
    int jobs = 0;        // not ended
  };
  /// Lines that decide whose turn it is: by priority, jobs of each share, oldest first.
  using Lines = std::map<std::int32_t, std::map<std::string, std::set<JobId>>, std::greater<>>;
  void join_share(const JobEntry& job);
  void leave_share(const JobEntry& job);
  /// Lets the job wait for its turn; `leave_line` ends that.
  void enter_line(const JobEntry& job);
  void leave_line(JobId id);
  /// Returns what each share has had, where what is under way counts as it is expected to end.
  std::map<std::string, double> had() const;

  std::size_t max_queued_;
  std::size_t max_kept_;
  std::uint64_t max_kept_bytes_;
  JobId next_id_ = 1;
  std::size_t ended_total_ = 0;
  std::map<JobId, JobEntry> jobs_;
  std::map<JobId, BatchEntry> batches_;  // under way
  std::deque<JobId> queue_;              // oldest first
  Lines lines_;                          // lines of jobs that are not held
  /// Place of each job in the lines.
  std::unordered_map<JobId, std::pair<std::int32_t, std::string>> turns_;
  std::set<JobId> under_way_;  // loading or running
  std::map<std::string, Share> shares_;
  double mean_cost_ = 1;  // seconds × actors of the jobs that ended of late
  std::deque<JobId> ended_;
};

}  // namespace troupe::jobs
