#include "controller/schedule/task_graph.h"

#include <map>
#include <set>

namespace troupe::schedule {
namespace {

/// Adds the tasks of one dp replica.
class ReplicaBuilder {
 public:
  ReplicaBuilder(const plan::Plan& plan, int dp, std::vector<Task>& tasks)
      : plan_(plan), mesh_(plan.degrees), dp_(dp), tasks_(tasks) {}

  void build() {
    text_ = add_text();
    std::vector<std::uint32_t> leaving;  // the last stage's tasks of the step before
    const int parts = static_cast<int>(plan_.batch_parts[dp_].size());
    for (int step = 0; step < plan_.request.steps; ++step) {
      std::vector<std::uint32_t> now;
      const bool whole = step < plan_.synchronous_steps;
      const int rounds = whole ? parts : static_cast<int>(plan_.micro_steps.size());
      for (int round = 0; round < rounds; ++round) {
        std::uint32_t before = text_;
        if (!leaving.empty()) before = leaving.size() == 1 ? leaving[0] : leaving[round];
        for (int stage = 0; stage < plan_.degrees.pp; ++stage) {
          before = add_micro_step({.step = step,
                                   .stage = stage,
                                   .patch = whole ? -1 : round,
                                   .part = whole ? round : 0},
                                  !whole || round + 1 == parts, before);
        }
        now.push_back(before);
      }
      tasks_[now.back()].ends_step = true;
      // The last part of a whole picture has waited for the others.
      leaving = whole ? std::vector{now.back()} : std::move(now);
    }
    add_decode(leaving);
  }

 private:
  std::uint32_t add(Task task) {
    task.dp = dp_;
    tasks_.push_back(std::move(task));
    return static_cast<std::uint32_t>(tasks_.size() - 1);
  }

  std::uint32_t add_text() {
    const int replica = plan_.degrees.world() / plan_.degrees.dp;
    Task task;
    task.kind = wire::TaskKind::encode_text;
    for (int i = 0; i < replica; ++i)
      task.ranks.push_back(dp_ * replica + i);
    return add(std::move(task));
  }

  std::vector<std::int32_t> stage_ranks(int stage) const {
    std::vector<std::int32_t> ranks;
    for (int cfg = 0; cfg < plan_.degrees.cfg; ++cfg) {
      const auto branch =
          mesh_.group_of(mesh::Axis::stage, mesh_.rank({.dp = dp_, .cfg = cfg, .pp = stage}));
      ranks.insert(ranks.end(), branch.begin(), branch.end());
    }
    return ranks;
  }

  /// `completes`: after it, the last stage has latents to send back.
  std::uint32_t add_micro_step(Task task, bool completes, std::uint32_t before) {
    const int stage = task.stage;
    task.ranks = stage_ranks(stage);
    task.predecessors = {before};
    const auto last = last_of_stage_.find(stage);
    if (last != last_of_stage_.end() && last->second != before)
      task.predecessors.push_back(last->second);
    if (stage + 1 < plan_.degrees.pp) {
      task.receivers = stage_ranks(stage + 1);
      task.consumer_step = task.step;
      task.consumer_part = task.part;
    } else if (plan_.degrees.pp > 1 && completes && task.step + 1 < plan_.request.steps) {
      task.receivers = stage_ranks(0);
      task.consumer_step = task.step + 1;
    }
    const auto id = add(std::move(task));
    last_of_stage_[stage] = id;
    return id;
  }

  void add_decode(const std::vector<std::uint32_t>& leaving) {
    Task task;
    task.kind = wire::TaskKind::decode;
    task.step = plan_.request.steps;
    task.stage = plan_.degrees.pp - 1;
    const auto decoders = plan_.decoders(dp_);
    const auto holders = plan_.latent_holders(dp_);
    std::set<std::int32_t> ranks(decoders.begin(), decoders.end());
    ranks.insert(holders.begin(), holders.end());
    task.ranks.assign(ranks.begin(), ranks.end());
    task.predecessors = leaving;
    add(std::move(task));
  }

  const plan::Plan& plan_;
  mesh::Mesh mesh_;
  int dp_;
  std::vector<Task>& tasks_;
  std::uint32_t text_ = 0;
  std::map<int, std::uint32_t> last_of_stage_;  // a stage runs its micro-steps in one order
};

}  // namespace

TaskGraph make_task_graph(const plan::Plan& plan) {
  TaskGraph graph;
  graph.world = plan.degrees.world();
  graph.steps = plan.request.steps;
  for (int dp = 0; dp < plan.degrees.dp; ++dp)
    ReplicaBuilder(plan, dp, graph.tasks).build();
  return graph;
}

std::string describe(const Task& task) {
  switch (task.kind) {
    case wire::TaskKind::encode_text:
      return "text";
    case wire::TaskKind::decode:
      return "decode";
    case wire::TaskKind::micro_step:
      break;
  }
  std::string text = "step " + std::to_string(task.step);
  if (task.patch >= 0) text += " patch " + std::to_string(task.patch);
  if (task.part > 0) text += " part " + std::to_string(task.part);
  return text + " stage " + std::to_string(task.stage);
}

}  // namespace troupe::schedule
