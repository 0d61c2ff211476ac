#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "transport/wire/actor_messages.h"

namespace troupe::schedule {

/// One task of a job. A micro-step (step, stage, patch) is one task for all ranks of its stage in a
/// dp replica: it is issued to all of them at once.
struct Task {
  wire::TaskKind kind = wire::TaskKind::micro_step;
  std::int32_t dp = 0;
  std::int32_t step = 0;
  std::int32_t stage = 0;
  std::int32_t patch = -1;  // -1 = the whole picture
  std::int32_t part = 0;    // part of the batch, of the whole picture; of a decode: which one
  std::vector<std::int32_t> ranks = {};          // world ranks that run it
  std::vector<std::uint32_t> predecessors = {};  // tasks that must be issued before it
  /// Ranks that get what the task sends on, in the order of `ranks`: of the next stage, then of
  /// later stages that take up what its blocks leave. Their receives are posted when the task is
  /// issued.
  std::vector<std::int32_t> receivers = {};
  std::int32_t consumer_step = 0;  // step of the micro-step there that will use it
  std::int32_t consumer_part = 0;
  bool ends_step = false;  // when it is done in every replica, `step` has left the last stage
  /// Work of the member that has most to compute: tokens × batch items × blocks. 0 = nothing: text
  /// that the caller brought, latents that nobody decodes. Comparable between tasks of one kind;
  /// what a unit costs in seconds is learned (task_speeds.h).
  double work = 0;
};

/// All tasks of a job in an order in which each comes after its predecessors. A pure value made
/// from a plan.
struct TaskGraph {
  std::vector<Task> tasks;
  std::int32_t world = 0;
  std::int32_t steps = 0;
};

/// Makes the tasks of a job. `first_step`: the steps before it are left out, because their outcome
/// is there already; the text and the decode stay. With `first_step` equal to the plan's steps,
/// nothing but these two is left.
///
/// Latents go from the last stage to stage 0 after step s, as (consumer_step, patch): after a step
/// of the whole picture once (s + 1, -1), which all of step s + 1 waits for; after a step by
/// patches (s + 1, m) for every micro-step m. A whole step that follows patches waits for all of
/// them, and its part 0 finds them all at stage 0. Nothing is sent there for `first_step`.
TaskGraph make_task_graph(const plan::Plan& plan, int first_step = 0);

/// Name of a task.
struct TaskName {
  wire::TaskKind kind = wire::TaskKind::micro_step;
  std::int32_t step = 0;
  std::int32_t stage = 0;
  std::int32_t patch = -1;
  std::int32_t part = 0;
};
inline TaskName name_of(const Task& task) {
  return {task.kind, task.step, task.stage, task.patch, task.part};
}

/// Returns "step 5 patch 1 stage 0", "text", "decode": for people and causes of failure.
std::string describe(const TaskName& task);
inline std::string describe(const Task& task) {
  return describe(name_of(task));
}

}  // namespace troupe::schedule
