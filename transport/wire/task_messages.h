#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/wire/job.h"
#include "transport/wire/kind.h"
#include "transport/wire/session.h"

namespace troupe::wire {

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
  std::int32_t part = 0;   // of a whole picture: which part of the batch
  std::int32_t stage = 0;  // of a receive: the producer's stage

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, task, receive, kind, step, patch, part, stage);
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

/// Span of time, in nanoseconds of the actor's monotonic clock.
struct ClockSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(begin_ns, end_ns);
  }
  bool operator==(const ClockSpan&) const = default;
};

/// Words for the user.
struct Warning {
  /// The one of the request's prompts that it is about; nothing: the whole request. Where prompts
  /// of several jobs are computed together, it is told to that one's job alone, with the number
  /// that the prompt has there.
  std::optional<std::int32_t> prompt;
  std::string what;

  bool operator==(const Warning&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(prompt, what);
  }
};

/// actor → controller: a task has been done.
struct TaskDone {
  static constexpr Kind kKind = Kind::task_done;
  std::uint64_t epoch = 0;
  std::uint64_t job = 0;
  std::uint32_t task = 0;
  std::vector<BlobRef> blobs;  // pictures, latents, previews that this task left at the actor
  std::vector<Warning> warnings;
  ClockSpan ran;                        // the task's own time, waits included
  std::vector<ClockSpan> waits;         // for tensors of peers, in order, within `ran`
  std::optional<double> timestep = {};  // the sampler's, of a step that the task ended

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, job, task, blobs, warnings, ran, waits, timestep);
  }
};

/// actor → controller: a task, or the beginning of a job, has failed.
struct TaskFailed {
  static constexpr Kind kKind = Kind::task_failed;
  std::uint64_t epoch = 0;
  std::uint64_t job = 0;
  std::uint32_t task = 0;
  Failure failure;
  bool collateral = false;  // the task failed because a peer or the epoch went, not by itself
  bool begin = false;       // not a task, but the beginning of the job
  bool goes_on = false;     // the actor does, as if nothing were (JobAction::until_not_finite)

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, job, task, failure, collateral, begin, goes_on);
  }
};

}  // namespace troupe::wire
