#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "controller/schedule/dispatcher.h"
#include "tests/controller/sample_model.h"

namespace troupe::test {
using schedule::ActorId;
using schedule::Dispatcher;
using schedule::JobId;

inline plan::Plan some_plan(int steps, int patches, int warmup, wire::Parallelism parallelism,
                            Method method = Method::pipefusion) {
  wire::ImageRequest request;
  request.prompts = {"x", "y", "z"};
  request.steps = steps;
  request.method = method;
  request.num_pipeline_patch = method == Method::exact ? 1 : patches;
  request.warmup_steps = std::min(warmup, steps);
  return plan::make_plan(test::skipping_model(), request, parallelism);
}

/// Actors that run their mailboxes in order as the real ones do: a task starts when its transfers'
/// producers are done, a collective when all its members have it at the head. Records what a tensor
/// plane would see.
class SimulatedActors {
 public:
  SimulatedActors(int window, std::uint64_t seed) : dispatcher(window), random_(seed) {}

  void add(JobId id, const plan::Plan& plan, std::vector<ActorId> actors,
           schedule::JobTerms terms = {}, int first_step = 0) {
    plans_[id] = plan;
    first_step_[id] = first_step;
    graphs_[id] = schedule::make_task_graph(plan, first_step);
    dispatcher.add_job(id, graphs_[id], actors, std::move(terms));
    actors_of_[id] = std::move(actors);
  }

  /// Removes a job in the midst of its tasks, as when its epoch ends: nobody hears of it any more.
  void drop(JobId id) {
    dispatcher.remove(id);
    const auto of_job = [id](const auto& key) { return key.first == id; };
    std::erase_if(total_order_, of_job);
    for (auto* lists : {&posted_, &sent_order_}) {
      for (auto& [actor, list] : *lists)
        std::erase_if(list, of_job);
    }
    for (auto& [actor, queue] : mailbox_)
      std::erase_if(queue, of_job);
  }

  void pump() {
    for (const auto& issue : dispatcher.issue()) {
      const auto key = std::pair{issue.command.job, issue.command.task};
      if (issue.command.receive) {
        posted_[issue.actor].push_back(key);
        most_posted = std::max(most_posted, ++open_[{issue.actor, key.first, issue.command.stage}]);
      } else {
        if (total_order_.empty() || total_order_.back() != key) total_order_.push_back(key);
        mailbox_[issue.actor].push_back(key);
        sent_order_[issue.actor].push_back(key);
      }
    }
  }

  /// Finishes one runnable task at one random actor. False when none can run.
  bool advance() {
    std::vector<ActorId> able;
    for (const auto& [actor, queue] : mailbox_) {
      if (!queue.empty() && runnable(queue.front())) able.push_back(actor);
    }
    if (able.empty()) return false;
    const ActorId actor = able[random_() % able.size()];
    const auto [job, task] = mailbox_[actor].front();
    const auto& what = dispatcher.task(job, task);
    const auto& members = actors_of_[job];
    // Collectives end for all members together.
    std::vector<ActorId> who;
    for (const auto rank : what.ranks)
      who.push_back(members[rank]);
    for (const auto member : who) {
      mailbox_[member].pop_front();
      consume(member, job, what);
      if (random_() % 2) {
        dispatcher.finish(job, task, member);
      } else {
        dispatcher.finish(job, task, member, 1e-3 * static_cast<double>(random_() % 50));
      }
    }
    ++finished;
    return true;
  }

  Dispatcher dispatcher;
  int most_posted = 0;  // of one edge and job at one actor
  int finished = 0;

  /// True if all members of any two groups have the tasks they share in the same order.
  bool groups_agree() {
    std::map<std::pair<JobId, std::uint32_t>, std::size_t> total;
    for (std::size_t at = 0; at < total_order_.size(); ++at)
      total[total_order_[at]] = at;
    for (const auto& [actor, order] : sent_order_) {
      for (std::size_t at = 1; at < order.size(); ++at) {
        if (total.at(order[at - 1]) >= total.at(order[at])) return false;
      }
    }
    // Each to all members, and after its predecessors.
    std::map<std::pair<JobId, std::uint32_t>, std::size_t> copies;
    for (const auto& [actor, order] : sent_order_) {
      for (const auto& key : order)
        ++copies[key];
    }
    for (const auto& [key, at] : total) {
      const auto& what = graphs_.at(key.first).tasks[key.second];
      if (copies[key] != what.ranks.size()) return false;
      for (const auto before : what.predecessors) {
        if (!total.contains({key.first, before}) || total[{key.first, before}] > at) return false;
      }
    }
    return true;
  }

  /// True if both ends of every edge saw the same order.
  bool edges_agree() {
    for (const auto& [receiver, order] : posted_) {
      std::map<ActorId, std::vector<std::pair<JobId, std::uint32_t>>> by_sender;
      for (const auto& [job, task] : order) {
        const auto& what = graphs_.at(job).tasks[task];
        const auto own =
            std::find(what.receivers.begin(), what.receivers.end(), rank_of(job, receiver));
        const auto place = static_cast<std::size_t>(own - what.receivers.begin());
        const auto sender = actors_of_[job][what.ranks[place % what.ranks.size()]];
        by_sender[sender].push_back({job, task});
      }
      for (const auto& [sender, expected] : by_sender) {
        std::vector<std::pair<JobId, std::uint32_t>> sent;
        for (const auto& key : sent_order_[sender]) {
          if (std::find(expected.begin(), expected.end(), key) != expected.end())
            sent.push_back(key);
        }
        if (sent != expected) return false;
      }
    }
    return true;
  }

 private:
  std::int32_t rank_of(JobId job, ActorId actor) {
    const auto& members = actors_of_[job];
    return static_cast<std::int32_t>(std::find(members.begin(), members.end(), actor) -
                                     members.begin());
  }

  bool runnable(const std::pair<JobId, std::uint32_t>& key) {
    const auto& what = dispatcher.task(key.first, key.second);
    for (const auto rank : what.ranks) {
      const auto& queue = mailbox_[actors_of_[key.first][rank]];
      if (queue.empty() || queue.front() != key) return false;
    }
    return std::all_of(what.predecessors.begin(), what.predecessors.end(),
                       [&](auto before) { return dispatcher.is_done(key.first, before); });
  }

  void consume(ActorId actor, JobId job, const schedule::Task& what) {
    if (what.kind != wire::TaskKind::micro_step) return;
    const auto& plan = plans_[job];
    if (what.stage > 0) {
      --open_[{actor, job, what.stage - 1}];
      for (const auto& group : plan.groups) {
        if (group.role == plan::GroupPlan::Role::skip && group.ranks[1] == rank_of(job, actor))
          --open_[{actor, job, mesh::Mesh(plan.degrees).coordinates(group.ranks[0]).pp}];
      }
      return;
    }
    auto& open = open_[{actor, job, plan.degrees.pp - 1}];
    // Latents come back once for all parts of the batch, and nothing for the first step.
    if (plan.degrees.pp == 1 || what.step == first_step_[job] || what.part > 0) return;
    const bool came_whole = plan.is_whole(what.step - 1);
    if (came_whole) {
      if (what.patch <= 0) --open;
    } else {
      open -= what.patch >= 0 ? 1 : static_cast<int>(plan.micro_steps.size());
    }
  }

  std::mt19937_64 random_;
  std::map<JobId, plan::Plan> plans_;
  std::map<JobId, schedule::TaskGraph> graphs_;
  std::map<JobId, int> first_step_;
  std::vector<std::pair<JobId, std::uint32_t>> total_order_;
  std::map<JobId, std::vector<ActorId>> actors_of_;
  std::map<ActorId, std::deque<std::pair<JobId, std::uint32_t>>> mailbox_;
  std::map<ActorId, std::vector<std::pair<JobId, std::uint32_t>>> posted_;
  std::map<ActorId, std::vector<std::pair<JobId, std::uint32_t>>> sent_order_;
  std::map<std::tuple<ActorId, JobId, int>, int> open_;  // posted, by the stage that sends
};

}  // namespace troupe::test
