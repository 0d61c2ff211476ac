#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/job.h"
#include "transport/wire/kind.h"
#include "transport/wire/session.h"

namespace troupe::wire {

/// controller → actor: keep this part of the model. Answered by StageLoaded or Failure.
struct LoadStage {
  static constexpr Kind kKind = Kind::load_stage;
  std::uint64_t deployment = 0;
  std::string model;  // folder
  std::string dtype;  // compute type
  std::int32_t first_block = 0;
  std::int32_t last_block = 0;  // exclusive
  bool embeds = false;
  bool projects = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(deployment, model, dtype, first_block, last_block, embeds, projects);
  }
};

struct StageLoaded {
  static constexpr Kind kKind = Kind::stage_loaded;
  std::uint64_t weight_bytes = 0;
  double seconds = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(weight_bytes, seconds);
  }
};

/// One tensor-plane group of a deployment, as one member sees it.
struct GroupSpec {
  std::uint32_t id = 0;   // names the group in tasks; unique in the deployment
  std::string name;       // for people and errors: "edge 0→1", "cfg 1,3", "caption 0,1,2,3"
  std::int32_t rank = 0;  // the receiver's rank in it
  std::vector<std::string> addresses;  // tensor-plane address of each member, in rank order

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, name, rank, addresses);
  }
};

/// controller → actor: make the communicators of this deployment's epoch. Answered by
/// GroupsConnected or Failure.
struct ConnectGroups {
  static constexpr Kind kKind = Kind::connect_groups;
  std::uint64_t deployment = 0;
  std::uint64_t epoch = 0;
  std::string backend;  // shm | tcp | nccl
  std::vector<GroupSpec> groups;
  std::uint32_t deadline_ms = 10000;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(deployment, epoch, backend, groups, deadline_ms);
  }
};

struct GroupsConnected {
  static constexpr Kind kKind = Kind::groups_connected;
  double seconds = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(seconds);
  }
};

/// A run of token rows of the picture.
struct RowRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(begin, end);
  }
  bool operator==(const RowRange&) const = default;
};

/// controller → actor: a job begins here. What the actor needs to run its tasks; every shape
/// follows from it.
struct BeginJob {
  static constexpr Kind kKind = Kind::begin_job;
  std::uint64_t job = 0;
  std::uint64_t deployment = 0;
  std::uint64_t epoch = 0;
  ImageRequest request;
  std::int32_t first_image = 0;  // this dp replica's slice of prompts × images_per_prompt
  std::int32_t last_image = 0;   // exclusive
  std::int32_t stage = 0;
  std::int32_t stages = 1;
  std::int32_t cfg_rank = 0;  // 0 = negative branch, 1 = positive
  std::int32_t cfg_degree = 1;
  std::vector<RowRange> patches;
  std::uint32_t caption_group = 0;  // 0 = none (alone)
  std::int32_t caption_rank = 0;
  std::int32_t caption_root = 0;  // who encodes the text, rank in that group
  std::uint32_t previous_group =
      0;  // edge from the previous stage; of stage 0: the feedback edge from the last stage
  std::uint32_t next_group =
      0;  // edge to the next stage; of the last stage: the feedback edge to stage 0
  std::uint32_t cfg_group = 0;  // of the last stage, when cfg_degree is 2
  bool decodes = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, deployment, epoch, request, first_image, last_image, stage, stages, cfg_rank,
       cfg_degree, patches, caption_group, caption_rank, caption_root, previous_group, next_group,
       cfg_group, decodes);
  }
};

enum class TaskKind : std::uint8_t { encode_text, micro_step, decode };
constexpr bool is_valid(TaskKind kind) {
  return kind <= TaskKind::decode;
}

/// One entry of an actor's ordered mailbox: run a task, or post the receive of a transfer whose
/// producer was issued.
struct Command {
  std::uint64_t job = 0;
  std::uint32_t task = 0;  // index in the job's task graph; of a receive: the producer's
  bool receive = false;
  TaskKind kind = TaskKind::micro_step;
  std::int32_t step = 0;  // of a receive: of the micro-step that will consume it
  std::int32_t patch =
      -1;  // -1 = the whole picture; of a receive: what is sent, so -1 also between the modes

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, task, receive, kind, step, patch);
  }
};

/// controller → actor: the next entries of the mailbox, in order.
struct RunTasks {
  static constexpr Kind kKind = Kind::run_tasks;
  std::uint64_t epoch = 0;
  std::vector<Command> commands;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, commands);
  }
};

struct TaskDone {
  static constexpr Kind kKind = Kind::task_done;
  std::uint64_t epoch = 0;
  std::uint64_t job = 0;
  std::uint32_t task = 0;
  std::vector<BlobRef> blobs;  // pictures, latents, previews that this task left at the actor
  std::vector<std::string> warnings;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, job, task, blobs, warnings);
  }
};

struct TaskFailed {
  static constexpr Kind kKind = Kind::task_failed;
  std::uint64_t epoch = 0;
  std::uint64_t job = 0;
  std::uint32_t task = 0;
  Failure failure;
  bool collateral = false;  // it failed because a peer or the epoch went, not by itself
  bool begin = false;       // not a task, but the beginning of the job

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, job, task, failure, collateral, begin);
  }
};

/// controller → actor: forget this job's state. Answered by ActorJobStats.
struct EndJob {
  static constexpr Kind kKind = Kind::end_job;
  std::uint64_t job = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job);
  }
};

/// What a job cost at one actor. Seconds from the first command to the last one.
struct ActorJobStats {
  static constexpr Kind kKind = Kind::actor_job_stats;
  double busy_seconds = 0;             // computing
  double peer_wait_seconds = 0;        // for tensors of other actors
  double controller_wait_seconds = 0;  // empty mailbox while tasks of the job were to come
  double text_seconds = 0;
  double denoise_seconds = 0;
  double decode_seconds = 0;
  std::uint64_t tensor_bytes_sent = 0;
  std::uint64_t tensor_bytes_received = 0;
  std::uint64_t control_bytes_sent = 0;
  std::uint64_t control_bytes_received = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes = 0;
  std::uint64_t peak_memory_bytes = 0;  // highest resident set of the process while the job ran

  template <class Archive>
  void serialize(Archive& ar) {
    ar(busy_seconds, peer_wait_seconds, controller_wait_seconds, text_seconds, denoise_seconds,
       decode_seconds, tensor_bytes_sent, tensor_bytes_received, control_bytes_sent,
       control_bytes_received, weight_bytes, kv_bytes, peak_memory_bytes);
  }
};

/// controller → actor, second lane: the epoch is over; end all its operations and drop its jobs and
/// groups. Answered by Done once nothing of the epoch runs any more.
struct AbortEpoch {
  static constexpr Kind kKind = Kind::abort_epoch;
  std::uint64_t epoch = 0;
  std::string why;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, why);
  }
};

struct Unload {
  static constexpr Kind kKind = Kind::unload;
  std::uint64_t deployment = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(deployment);
  }
};

struct Shutdown {
  static constexpr Kind kKind = Kind::shutdown;

  template <class Archive>
  void serialize(Archive&) {}
};

}  // namespace troupe::wire
