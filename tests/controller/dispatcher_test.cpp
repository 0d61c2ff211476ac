#include "controller/schedule/dispatcher.h"

#include <rapidcheck.h>
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using schedule::ActorId;
using schedule::Dispatcher;
using schedule::JobId;

namespace {

plan::Plan some_plan(int steps, int patches, int warmup, wire::Parallelism parallelism,
                     const std::string& method = "pipefusion") {
  wire::ImageRequest request;
  request.prompts = {"x", "y", "z"};
  request.steps = steps;
  request.method = method;
  request.num_pipeline_patch = method == "exact" ? 1 : patches;
  request.warmup_steps = std::min(warmup, steps);
  return plan::make_plan(test::sample_model(), request, parallelism);
}

/// Actors that run their mailboxes in order as the real ones do: a task starts when its transfers'
/// producers are done, a collective when all its members have it at the head. Records what a tensor
/// plane would see.
class Playground {
 public:
  Playground(int window, std::uint64_t seed) : dispatcher(window), random_(seed) {}

  void add(JobId id, const plan::Plan& plan, std::vector<ActorId> actors,
           schedule::JobTerms terms = {}, int first_step = 0) {
    plans_[id] = plan;
    first_step_[id] = first_step;
    graphs_[id] = schedule::make_task_graph(plan, first_step);
    dispatcher.add_job(id, graphs_[id], actors, std::move(terms));
    actors_of_[id] = std::move(actors);
  }

  void pump() {
    for (const auto& issue : dispatcher.issue()) {
      const auto key = std::pair{issue.command.job, issue.command.task};
      if (issue.command.receive) {
        posted_[issue.actor].push_back(key);
        most_posted = std::max(most_posted, ++open_[{issue.actor, issue.command.job}]);
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
  int most_posted = 0;
  int finished = 0;

  /// All members of any two groups have the tasks they share in the same order.
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

  /// Both ends of every edge saw the same order.
  bool edges_agree() {
    for (const auto& [receiver, order] : posted_) {
      std::map<ActorId, std::vector<std::pair<JobId, std::uint32_t>>> by_sender;
      for (const auto& [job, task] : order) {
        const auto& what = graphs_.at(job).tasks[task];
        const auto own =
            std::find(what.receivers.begin(), what.receivers.end(), rank_of(job, receiver));
        const auto sender = actors_of_[job][what.ranks[own - what.receivers.begin()]];
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
    auto& open = open_[{actor, job}];
    if (what.stage > 0) {
      --open;
      return;
    }
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
  std::map<std::pair<ActorId, JobId>, int> open_;
};

}  // namespace

TEST_CASE("a single actor gets its tasks in order, at most a window of them") {
  Dispatcher dispatcher(3);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(4, 2, 1, {})), {7});
  auto first = dispatcher.issue();
  CHECK(first.size() == 3);
  CHECK(dispatcher.outstanding(7) == 3);
  CHECK(dispatcher.issue().empty());
  CHECK(dispatcher.current(7) == std::pair<JobId, std::uint32_t>{1, 0});
  CHECK(dispatcher.finish(1, 0, 7));
  const auto next = dispatcher.issue();
  REQUIRE(next.size() == 1);
  CHECK(next[0].command.task == 3);
  CHECK(dispatcher.queue(7).back() == std::pair<JobId, std::uint32_t>{1, 3});
}

TEST_CASE("doubled, unknown and foreign ends of tasks change nothing") {
  Dispatcher dispatcher(4);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(2, 1, 0, {.pp = 2})), {0, 1});
  dispatcher.issue();
  CHECK_FALSE(dispatcher.finish(1, 0, 0));
  CHECK_FALSE(dispatcher.finish(1, 0, 0));
  CHECK(dispatcher.finish(1, 0, 1));
  CHECK_FALSE(dispatcher.finish(1, 0, 1));
  CHECK_FALSE(dispatcher.finish(1, 1, 9));
  CHECK_FALSE(dispatcher.finish(2, 0, 0));
  CHECK_FALSE(dispatcher.finish(1, 4000, 0));
}

TEST_CASE("a cancelled job gets nothing more and drains, also when it is paused") {
  Dispatcher dispatcher(2);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(4, 2, 1, {})), {0});
  CHECK(dispatcher.issue().size() == 2);
  dispatcher.pause(1);
  dispatcher.cancel(1);
  CHECK_FALSE(dispatcher.drained(1));
  CHECK_FALSE(dispatcher.step(1));
  dispatcher.finish(1, 0, 0);
  dispatcher.finish(1, 1, 0);
  dispatcher.resume(1);
  CHECK(dispatcher.issue().empty());
  CHECK(dispatcher.drained(1));
  CHECK_FALSE(dispatcher.complete(1));
  dispatcher.remove(1);
  CHECK_FALSE(dispatcher.has(1));
}

TEST_CASE("a removed job leaves the actors' windows free, and may come again from a later step") {
  Dispatcher dispatcher(2);
  const auto plan = some_plan(4, 2, 1, {});
  dispatcher.add_job(1, schedule::make_task_graph(plan), {0});
  dispatcher.issue();
  dispatcher.remove(1);
  CHECK(dispatcher.outstanding(0) == 0);
  CHECK_FALSE(dispatcher.current(0).has_value());
  CHECK_FALSE(dispatcher.finish(1, 0, 0));
  dispatcher.add_job(1, schedule::make_task_graph(plan, 3), {4});
  std::vector<std::pair<wire::TaskKind, int>> seen;
  for (auto issued = dispatcher.issue(); !issued.empty(); issued = dispatcher.issue()) {
    for (const auto& issue : issued) {
      CHECK(issue.actor == 4);
      seen.emplace_back(issue.command.kind, issue.command.step);
      dispatcher.finish(1, issue.command.task, 4);
    }
  }
  using Kind = wire::TaskKind;
  CHECK(seen == std::vector<std::pair<Kind, int>>{{Kind::encode_text, 0},
                                                  {Kind::micro_step, 3},
                                                  {Kind::micro_step, 3},
                                                  {Kind::decode, 4}});
  CHECK(dispatcher.complete(1));
}

TEST_CASE("a paused job drains, goes on one task a step, and as before when it is resumed") {
  Dispatcher dispatcher(2);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(3, 1, 0, {.pp = 2}, "exact")), {0, 1});
  const auto end_all = [&] {
    for (const ActorId actor : {0u, 1u}) {
      while (const auto at = dispatcher.current(actor))
        dispatcher.finish(at->first, at->second, actor);
    }
  };
  CHECK_FALSE(dispatcher.step(1));
  dispatcher.issue();
  CHECK(dispatcher.pause(1));
  CHECK(dispatcher.paused(1));
  end_all();
  CHECK(dispatcher.issue().empty());
  CHECK_FALSE(dispatcher.drained(1));
  for (int steps = 1; steps <= 2; ++steps) {
    for (int i = 0; i < steps; ++i)
      CHECK(dispatcher.step(1));
    std::set<std::uint32_t> tasks;
    for (const auto& issue : dispatcher.issue()) {
      if (!issue.command.receive) tasks.insert(issue.command.task);
    }
    CHECK(static_cast<int>(tasks.size()) == steps);
    CHECK(dispatcher.issue().empty());
    end_all();
    CHECK(dispatcher.issue().empty());
  }
  CHECK(dispatcher.resume(1));
  CHECK_FALSE(dispatcher.paused(1));
  CHECK_FALSE(dispatcher.step(1));
  while (!dispatcher.issue().empty())
    end_all();
  CHECK(dispatcher.complete(1));
  CHECK_FALSE(dispatcher.pause(2));
  CHECK_FALSE(dispatcher.resume(2));
  CHECK_FALSE(dispatcher.step(2));
}

TEST_CASE("a step of a job whose text has many members goes to all of them, and only so many fit") {
  Dispatcher dispatcher(2);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(1, 1, 0, {.cfg = 2, .pp = 2})),
                     {0, 1, 2, 3});
  dispatcher.pause(1);
  CHECK(dispatcher.issue().empty());
  CHECK(dispatcher.step(1));
  CHECK(dispatcher.issue().size() == 4);
  for (std::size_t left = dispatcher.graph(1).tasks.size() - 1; left > 0; --left)
    CHECK(dispatcher.step(1));
  CHECK_FALSE(dispatcher.step(1));
}

TEST_CASE("a paused job does not hold up the others") {
  Dispatcher dispatcher(4);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(3, 2, 1, {})), {0}, {.priority = 9});
  dispatcher.add_job(2, schedule::make_task_graph(some_plan(3, 2, 1, {})), {0});
  dispatcher.pause(1);
  for (const auto& issue : dispatcher.issue())
    CHECK(issue.command.job == 2);
  CHECK(dispatcher.outstanding(0) == 4);
}

TEST_CASE(
    "any jobs on shared actors run to their end, in the same order at both ends of every edge") {
  const bool holds = rc::check([] {
    const int window = *rc::gen::inRange(1, 5);
    Playground play(window, *rc::gen::arbitrary<std::uint64_t>());
    const wire::Parallelism parallelism{.dp = *rc::gen::inRange(1, 3),
                                        .cfg = *rc::gen::inRange(1, 3),
                                        .pp = *rc::gen::inRange(1, 5),
                                        .ulysses = *rc::gen::inRange(1, 3),
                                        .ring = *rc::gen::inRange(1, 4),
                                        .tp = *rc::gen::inRange(1, 3)};
    const int world = parallelism.dp * parallelism.cfg * parallelism.pp * parallelism.ulysses *
                      parallelism.ring * parallelism.tp;
    std::vector<ActorId> actors(world);
    for (int i = 0; i < world; ++i)
      actors[i] = static_cast<ActorId>(i);
    const int jobs = *rc::gen::inRange(1, 5);
    int most_rounds = 1;
    for (int job = 1; job <= jobs; ++job) {
      const int patches = *rc::gen::inRange(1, 6);
      const auto method = *rc::gen::element<std::string>("exact", "pipefusion", "distrifusion");
      const int steps = *rc::gen::inRange(1, 6);
      auto plan = some_plan(steps, patches, *rc::gen::inRange(0, 4), parallelism, method);
      for (int step = 0; step < steps; ++step) {
        if (*rc::gen::inRange(0, 3) == 0) plan.request.refill_steps.push_back(step);
      }
      most_rounds = std::max(most_rounds, static_cast<int>(plan.micro_steps.size()));
      for (const auto& parts : plan.batch_parts)
        most_rounds = std::max(most_rounds, static_cast<int>(parts.size()));
      play.add(job, plan, actors,
               {.priority = *rc::gen::inRange(0, 3),
                .share = *rc::gen::element<std::string>("a", "b"),
                .machine = *rc::gen::inRange<std::uint64_t>(0, 2)},
               *rc::gen::inRange(0, steps + 1));
    }
    const auto maybe_pause = [&] {
      const JobId job = *rc::gen::inRange(1, jobs + 1);
      switch (*rc::gen::inRange(0, 12)) {
        case 0:
          play.dispatcher.pause(job);
          break;
        case 1:
          play.dispatcher.step(job);
          break;
        case 2:
          play.dispatcher.resume(job);
          break;
        default:
          break;
      }
    };
    play.pump();
    while (play.advance()) {
      for (const ActorId actor : actors)
        RC_ASSERT(play.dispatcher.outstanding(actor) <= window);
      if (*rc::gen::inRange(0, 3) != 0) play.pump();
      if (play.finished < 60) maybe_pause();
    }
    for (int job = 1; job <= jobs; ++job)
      play.dispatcher.resume(job);
    play.pump();
    while (play.advance())
      play.pump();
    for (int job = 1; job <= jobs; ++job)
      RC_ASSERT(play.dispatcher.complete(job));
    RC_ASSERT(play.groups_agree());
    RC_ASSERT(play.edges_agree());
    // Slots: what is on its way holds at most one for each patch or part of the batch (and the
    // whole picture between modes), what is issued ahead at most a window.
    RC_ASSERT(play.most_posted <= most_rounds + 1 + window);
  });
  CHECK(holds);
}

namespace {

/// Any tasks with any members and predecessors, no receivers.
schedule::TaskGraph any_graph(int world) {
  schedule::TaskGraph graph;
  graph.world = world;
  const int tasks = *rc::gen::inRange(1, 30);
  for (int id = 0; id < tasks; ++id) {
    schedule::Task task;
    task.stage = *rc::gen::inRange(0, 3);
    task.work = *rc::gen::inRange(0, 2000);
    for (int rank = 0; rank < world; ++rank) {
      if (*rc::gen::inRange(0, 3) == 0) task.ranks.push_back(rank);
    }
    if (task.ranks.empty()) task.ranks.push_back(*rc::gen::inRange(0, world));
    for (int before = std::max(0, id - 6); before < id; ++before) {
      if (*rc::gen::inRange(0, 4) == 0)
        task.predecessors.push_back(static_cast<std::uint32_t>(before));
    }
    graph.tasks.push_back(std::move(task));
  }
  return graph;
}

}  // namespace

TEST_CASE("any graphs, priorities and shares on overlapping actors run to their end") {
  const bool holds = rc::check([] {
    const schedule::Limits limits{.window = *rc::gen::inRange(1, 7),
                                  .job_always = *rc::gen::inRange(1, 4),
                                  .ahead_seconds = *rc::gen::element(0.0, 1e-4, 1.0)};
    Dispatcher dispatcher(limits);
    const int actors = *rc::gen::inRange(1, 6);
    const int jobs = *rc::gen::inRange(1, 7);
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    std::map<JobId, schedule::TaskGraph> graphs;
    std::map<JobId, std::vector<ActorId>> places;
    std::map<ActorId, std::deque<std::pair<JobId, std::uint32_t>>> mailbox;
    std::set<JobId> gone;
    const auto begin = [&](JobId job) {
      const int world = *rc::gen::inRange(1, actors + 1);
      std::vector<ActorId> all(actors);
      for (int i = 0; i < actors; ++i)
        all[i] = static_cast<ActorId>(i);
      std::shuffle(all.begin(), all.end(), random);
      all.resize(world);
      graphs[job] = any_graph(world);
      places[job] = all;
      dispatcher.add_job(job, graphs[job], all,
                         {.priority = *rc::gen::inRange(-1, 2),
                          .share = *rc::gen::element<std::string>("", "b", "c"),
                          .machine = *rc::gen::inRange<std::uint64_t>(0, 2)});
    };
    for (JobId job = 1; job <= static_cast<JobId>(jobs); ++job)
      begin(job);
    for (;;) {
      for (const auto& issue : dispatcher.issue())
        mailbox[issue.actor].emplace_back(issue.command.job, issue.command.task);
      std::vector<std::pair<JobId, std::uint32_t>> able;
      for (const auto& [actor, queue] : mailbox) {
        RC_ASSERT(static_cast<int>(queue.size()) == dispatcher.outstanding(actor));
        RC_ASSERT(dispatcher.outstanding(actor) <= limits.window);
        if (queue.empty()) continue;
        const auto [job, id] = queue.front();
        const auto& task = graphs[job].tasks[id];
        const bool heads = std::all_of(task.ranks.begin(), task.ranks.end(), [&](auto rank) {
          const auto& other = mailbox[places[job][rank]];
          return !other.empty() && other.front() == queue.front();
        });
        const bool inputs =
            std::all_of(task.predecessors.begin(), task.predecessors.end(),
                        [&](auto before) { return dispatcher.is_done(job, before); });
        if (heads && inputs) able.push_back(queue.front());
      }
      if (able.empty()) break;
      const auto [job, id] = able[random() % able.size()];
      for (const auto rank : graphs[job].tasks[id].ranks) {
        const ActorId actor = places[job][rank];
        mailbox[actor].pop_front();
        dispatcher.finish(job, id, actor, 1e-4 * static_cast<double>(random() % 20));
      }
      // An epoch ends now and then: the job goes, and comes again.
      if (random() % 40 == 0 && gone.size() < 3) {
        const JobId lost = 1 + random() % jobs;
        if (!dispatcher.has(lost)) continue;
        gone.insert(lost);
        dispatcher.remove(lost);
        for (auto& [actor, queue] : mailbox)
          std::erase_if(queue, [lost](const auto& entry) { return entry.first == lost; });
        begin(lost);
      }
    }
    for (JobId job = 1; job <= static_cast<JobId>(jobs); ++job) {
      RC_ASSERT(dispatcher.complete(job));
      RC_ASSERT(dispatcher.drained(job));
    }
  });
  CHECK(holds);
}
