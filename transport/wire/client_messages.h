#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/wire/done.h"
#include "transport/wire/job.h"
#include "transport/wire/kind.h"
#include "transport/wire/session.h"
#include "troupe/states.h"

namespace troupe {

constexpr bool is_valid(JobState state) {
  return state <= JobState::paused;
}
constexpr bool is_valid(JobPhase phase) {
  return phase <= JobPhase::unreachable;
}
constexpr bool is_valid(ActorState state) {
  return state <= ActorState::drained;
}

}  // namespace troupe

namespace troupe::wire {

/// client → controller. Answered by JobAccepted or Failure; JobProgress and JobFinished follow. A
/// client that did not get the answer may send the same again, under the same key: it is told of
/// the same job.
struct SubmitJob {
  static constexpr Kind kKind = Kind::submit_job;
  JobSpec job;
  bool detached = false;  // goes on when the client is gone
  std::uint64_t key = 0;  // random, made by the client; 0 = none
  bool only_check =
      false;  // the answer tells of the job what it would, with number 0; none is made

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, detached, key, only_check);
  }
};

struct JobAccepted {
  static constexpr Kind kKind = Kind::job_accepted;
  std::uint64_t job = 0;
  std::int32_t queue_position = 0;  // jobs that wait before it
  std::int32_t steps = 0;           // that it will have
  std::vector<std::string> warnings;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, queue_position, steps, warnings);
  }
};

/// controller → the client that submitted or waits: a phase began or a step was completed.
struct JobProgress {
  static constexpr Kind kKind = Kind::job_progress;
  std::uint64_t job = 0;
  std::optional<JobPhase> phase;  // none: a word about its client, and the job is where it was
  std::int32_t step = 0;
  std::int32_t steps = 0;
  double seconds_per_step = 0;          // mean of the last steps; 0 while unknown
  std::vector<BlobRef> blobs;           // latents or previews asked for, of one step:
  std::int32_t blobs_step = 0;          // completed steps of the blobs; `step` may be later
  std::vector<std::string> warnings;    // e.g. the part of a prompt that was cut
  std::optional<double> timestep = {};  // the sampler's timestep of the last completed step

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, phase, step, steps, seconds_per_step, blobs, blobs_step, warnings, timestep);
  }
};

/// controller → the client that submitted or waits: the job has ended, with its pictures or the
/// reason.
struct JobFinished {
  static constexpr Kind kKind = Kind::job_finished;
  std::uint64_t job = 0;
  JobState state = JobState::failed;
  Failure failure;             // when failed or cancelled
  std::vector<BlobRef> blobs;  // pictures in order (prompt-major), then latents
  std::string report;          // JSON: seed, plan, seconds, bytes, memory

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, state, failure, blobs, report);
  }
};

/// client → controller: tell me of this job, too (progress, and its end even if that is past).
struct WaitJob {
  static constexpr Kind kKind = Kind::wait_job;
  std::uint64_t job = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job);
  }
};

/// client → controller: end the job. Answered by Done at once, or by Failure.
struct CancelJob {
  static constexpr Kind kKind = Kind::cancel_job;
  std::uint64_t job = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job);
  }
};

/// client → controller: a page of the jobs. Those that run come first, then those that wait, in the
/// order of their turns, then those that have ended, the newest first. Answered by JobList.
struct ListJobs {
  static constexpr Kind kKind = Kind::list_jobs;
  std::uint64_t job = 0;   // only this one, and those of its batch; 0 = all
  std::uint32_t skip = 0;  // how many jobs to leave out at the beginning of the order
  std::uint32_t most = 0;  // how many jobs at most after those, up to kJobsOfPage; 0 = as many

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, skip, most);
  }
};
inline constexpr std::uint32_t kJobsOfPage = 400;

struct JobRow {
  std::uint64_t id = 0;
  JobState state = JobState::queued;
  std::string prompt;  // the first one
  std::int32_t pictures = 0;
  std::int32_t step = 0;
  std::int32_t steps = 0;
  double seconds = 0;  // since submitted, or of its whole life
  std::string cause;   // of a failure
  std::int32_t priority = 0;
  std::string share = {};           // as the client named it
  std::uint64_t batch = 0;          // batch that it computes or has computed in; 0 = none
  std::string not_batched = {};     // why it began by itself, although it may batch
  std::int32_t queue_position = 0;  // jobs that wait before it, while it is queued
  std::string model = {};           // its folder
  std::uint64_t seed = 0;           // of its first picture
  bool own_seeds = false;           // each of its pictures has a seed of its own
  Parallelism degrees = {};         // the degrees that it is planned for; without its stages
  std::string on_behalf_of = {};    // as the client named it

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, state, prompt, pictures, step, steps, seconds, cause, priority, share, batch,
       not_batched, queue_position, model, seed, own_seeds, degrees, on_behalf_of);
  }
};

struct JobList {
  static constexpr Kind kKind = Kind::job_list;
  std::vector<JobRow> jobs;  // of the page, by their numbers
  std::uint32_t all = 0;     // number of the jobs that were asked for, on all pages

  template <class Archive>
  void serialize(Archive& ar) {
    ar(jobs, all);
  }
};

/// client → controller: how is the cluster? Answered by ClusterStatus, with kActorsOfPage actors at
/// most, by their numbers.
struct GetStatus {
  static constexpr Kind kKind = Kind::get_status;
  std::uint32_t skip_actors = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(skip_actors);
  }
};
inline constexpr std::uint32_t kActorsOfPage = 256;

/// One rank of an actor in one group, e.g. {"pp", {0, 1}, 1}.
struct GroupRow {
  std::string axis;
  std::vector<std::int32_t> ranks;
  std::int32_t rank_in_group = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(axis, ranks, rank_in_group);
  }
};

struct ActorRow {
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;
  ActorState state = ActorState::starting;
  std::string host;
  std::uint32_t pid = 0;
  std::string device;
  std::int32_t local_rank = 0;
  std::vector<GroupRow> groups;
  std::string doing;  // e.g. "job 3 step 5 patch 1 stage 0"
  std::uint64_t restarts = 0;
  std::uint64_t memory_bytes = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, incarnation, state, host, pid, device, local_rank, groups, doing, restarts,
       memory_bytes);
  }
};

struct ClusterStatus {
  static constexpr Kind kKind = Kind::cluster_status;
  std::string version;
  std::string host;
  std::uint32_t pid = 0;
  std::string endpoint;
  std::string model;
  double uptime_seconds = 0;
  std::vector<ActorRow> actors;
  std::uint32_t actors_all = 0;  // number of actors, on all pages
  std::uint32_t jobs_queued = 0;
  std::uint32_t jobs_running = 0;
  std::uint32_t jobs_ended = 0;
  std::vector<std::string> recent_failures;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(version, host, pid, endpoint, model, uptime_seconds, actors, actors_all, jobs_queued,
       jobs_running, jobs_ended, recent_failures);
  }
};

/// client → controller: end the cluster. Answered by Done before that.
struct StopCluster {
  static constexpr Kind kKind = Kind::stop_cluster;

  template <class Archive>
  void serialize(Archive&) {}
};

}  // namespace troupe::wire
