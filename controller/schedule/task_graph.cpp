#include "controller/schedule/task_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "base/format.h"

namespace troupe::schedule {
namespace {

/// Adds the tasks of one dp replica.
class ReplicaBuilder {
 public:
  ReplicaBuilder(const plan::Plan& plan, int dp, std::vector<Task>& tasks)
      : plan_(plan), mesh_(plan.degrees), dp_(dp), tasks_(tasks), skips_to_(plan.stages.size()) {
    for (const auto& group : plan.groups) {
      if (group.role != plan::GroupPlan::Role::skip) continue;
      skips_to_[mesh_.coordinates(group.ranks[0]).pp].insert(mesh_.coordinates(group.ranks[1]).pp);
    }
  }

  void build(int first_step) {
    text_ = add_text();
    std::vector<std::uint32_t> leaving;  // the last stage's tasks of the step before
    const int parts = static_cast<int>(plan_.batch_parts[dp_].size());
    for (int step = first_step; step < plan_.request.steps; ++step) {
      std::vector<std::uint32_t> now;
      const bool whole = plan_.is_whole(step);
      const int rounds = whole ? parts : static_cast<int>(plan_.micro_steps.size());
      for (int round = 0; round < rounds; ++round) {
        auto before = entry(leaving, whole, round);
        for (int stage = 0; stage < plan_.degrees.pp; ++stage) {
          before = {add_micro_step({.step = step,
                                    .stage = stage,
                                    .patch = whole ? -1 : round,
                                    .part = whole ? round : 0},
                                   !whole || round + 1 == parts, std::move(before))};
        }
        now.push_back(before.front());
      }
      tasks_[now.back()].ends_step = true;
      // The last part of a whole picture has waited for the others.
      leaving = whole ? std::vector{now.back()} : std::move(now);
    }
    add_decode(leaving.empty() ? std::vector{text_} : leaving);
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
    const auto images = plan_.images[dp_].end - plan_.images[dp_].begin;
    if (plan_.encodes_text())
      task.work = static_cast<double>(plan_.request.max_sequence_length) * images *
                  (plan_.guidance ? 2 : 1) * plan_.stages.back().last_block;
    return add(std::move(task));
  }

  /// Returns the tasks that the first stage's round of a step waits for.
  std::vector<std::uint32_t> entry(const std::vector<std::uint32_t>& leaving, bool whole,
                                   int round) const {
    if (leaving.empty()) return {text_};
    if (leaving.size() == 1) return leaving;
    if (!whole) return {leaving[round]};
    // The later parts come after the first one on the same stage.
    return round == 0 ? leaving : std::vector{leaving.back()};
  }

  /// Returns the rows × columns × items × blocks of the member that has most of them.
  double work_of(const Task& task) const {
    std::int64_t rows = 0;
    const auto ranks = plan_.micro_steps.front().of_rank.size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::int64_t own = 0;
      for (int micro = 0; micro < static_cast<int>(plan_.micro_steps.size()); ++micro) {
        if (task.patch >= 0 && micro != task.patch) continue;
        const auto& run = plan_.micro_steps[micro].of_rank[rank];
        own += run.end - run.begin;
      }
      rows = std::max(rows, own);
    }
    int items = (plan_.images[dp_].end - plan_.images[dp_].begin) * plan_.branches_per_actor();
    if (task.patch < 0) {
      const auto& part = plan_.batch_parts[dp_][task.part];
      items = part.end - part.begin;
    }
    return static_cast<double>(rows * plan_.token_columns) * items *
           plan_.stages[task.stage].blocks() / plan_.degrees.tp;
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

  /// Adds a micro-step. `completes`: after it, the last stage has latents to send back.
  std::uint32_t add_micro_step(Task task, bool completes, std::vector<std::uint32_t> before) {
    const int stage = task.stage;
    task.ranks = stage_ranks(stage);
    task.work = work_of(task);
    const auto last = last_of_stage_.find(stage);
    if (last != last_of_stage_.end() &&
        std::find(before.begin(), before.end(), last->second) == before.end())
      before.push_back(last->second);
    task.predecessors = std::move(before);
    if (stage + 1 < plan_.degrees.pp) {
      task.receivers = stage_ranks(stage + 1);
      for (const int later : skips_to_[stage]) {
        const auto ranks = stage_ranks(later);
        task.receivers.insert(task.receivers.end(), ranks.begin(), ranks.end());
      }
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
    const auto decoders = plan_.decoders(dp_);
    const auto holders = plan_.latent_holders(dp_);
    std::set<std::int32_t> ranks(decoders.begin(), decoders.end());
    const std::vector<std::int32_t> alone(ranks.begin(), ranks.end());
    ranks.insert(holders.begin(), holders.end());
    const auto& parts = plan_.decode_parts[dp_];
    auto before = leaving;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      Task task;
      task.kind = wire::TaskKind::decode;
      task.step = plan_.request.steps;
      task.stage = plan_.degrees.pp - 1;
      task.part = static_cast<std::int32_t>(part);
      // With the first one all latents come to the decoders.
      task.ranks = part == 0 ? std::vector<std::int32_t>(ranks.begin(), ranks.end()) : alone;
      task.predecessors = std::move(before);
      if (plan_.decodes())
        task.work = static_cast<double>(plan_.latent_height * plan_.latent_width) *
                    (parts[part].end - parts[part].begin) * plan_.stages.back().last_block /
                    static_cast<double>(decoders.size());
      before = {add(std::move(task))};
    }
  }

  const plan::Plan& plan_;
  mesh::Mesh mesh_;
  int dp_;
  std::vector<Task>& tasks_;
  /// Stages behind the next one, by stage, that take up what its blocks leave.
  std::vector<std::set<int>> skips_to_;
  std::uint32_t text_ = 0;
  std::map<int, std::uint32_t> last_of_stage_;  // a stage runs its micro-steps in one order
};

}  // namespace

TaskGraph make_task_graph(const plan::Plan& plan, int first_step) {
  if (first_step < 0 || first_step > plan.request.steps) {
    throw std::invalid_argument(fmt::format("[schedule] a job of {} steps cannot begin at step {}",
                                            plan.request.steps, first_step));
  }
  TaskGraph graph;
  graph.world = plan.degrees.world();
  graph.steps = plan.request.steps;
  for (int dp = 0; dp < plan.degrees.dp; ++dp)
    ReplicaBuilder(plan, dp, graph.tasks).build(first_step);
  return graph;
}

std::string describe(const TaskName& task) {
  switch (task.kind) {
    case wire::TaskKind::encode_text:
      return "text";
    case wire::TaskKind::decode:
      return task.part > 0 ? fmt::format("decode part {}", task.part) : "decode";
    case wire::TaskKind::micro_step:
      break;
  }
  std::string text = fmt::format("step {}", task.step);
  if (task.patch >= 0) text += fmt::format(" patch {}", task.patch);
  if (task.part > 0) text += fmt::format(" part {}", task.part);
  return fmt::format("{} stage {}", text, task.stage);
}

}  // namespace troupe::schedule
