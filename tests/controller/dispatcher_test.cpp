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

  void add(JobId id, const plan::Plan& plan, std::vector<ActorId> actors) {
    plans_[id] = plan;
    dispatcher.add_job(id, schedule::make_task_graph(plan), actors);
    actors_of_[id] = std::move(actors);
  }

  void pump() {
    for (const auto& issue : dispatcher.issue()) {
      const auto key = std::pair{issue.command.job, issue.command.task};
      if (issue.command.receive) {
        posted_[issue.actor].push_back(key);
        most_posted = std::max(most_posted, ++open_[{issue.actor, issue.command.job}]);
      } else {
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
      dispatcher.finish(job, task, member);
    }
    return true;
  }

  Dispatcher dispatcher;
  int most_posted = 0;

  /// Both ends of every edge saw the same order.
  bool edges_agree() {
    for (const auto& [receiver, order] : posted_) {
      std::map<ActorId, std::vector<std::pair<JobId, std::uint32_t>>> by_sender;
      for (const auto& [job, task] : order) {
        const auto& what = finished_graphs.at(job).tasks[task];
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

  std::map<JobId, schedule::TaskGraph> finished_graphs;

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
    const auto& plan = plans_[job];
    const bool ring = what.stage == 0 && what.step > 0 && plan.degrees.pp > 1;
    const bool whole_came_before =
        ring && what.step == plan.synchronous_steps && what.patch > 0 && what.step > 0;
    // Latents come back once for all parts of the batch.
    if (what.kind == wire::TaskKind::micro_step &&
        (what.stage > 0 || (ring && what.part == 0 && !whole_came_before))) {
      --open_[{actor, job}];
    }
  }

  std::mt19937_64 random_;
  std::map<JobId, plan::Plan> plans_;
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

TEST_CASE("a cancelled job gets nothing more and drains") {
  Dispatcher dispatcher(2);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(4, 2, 1, {})), {0});
  CHECK(dispatcher.issue().size() == 2);
  dispatcher.cancel(1);
  CHECK_FALSE(dispatcher.drained(1));
  dispatcher.finish(1, 0, 0);
  dispatcher.finish(1, 1, 0);
  CHECK(dispatcher.issue().empty());
  CHECK(dispatcher.drained(1));
  CHECK_FALSE(dispatcher.complete(1));
  dispatcher.remove(1);
  CHECK_FALSE(dispatcher.has(1));
}

TEST_CASE("a removed job leaves the actors' windows free") {
  Dispatcher dispatcher(2);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(4, 2, 1, {})), {0});
  dispatcher.issue();
  dispatcher.remove(1);
  CHECK(dispatcher.outstanding(0) == 0);
  CHECK_FALSE(dispatcher.current(0).has_value());
}

TEST_CASE("the job of higher priority goes first") {
  Dispatcher dispatcher(1);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(1, 1, 0, {})), {0}, 0);
  dispatcher.add_job(2, schedule::make_task_graph(some_plan(1, 1, 0, {})), {0}, 5);
  const auto issued = dispatcher.issue();
  REQUIRE(issued.size() == 1);
  CHECK(issued[0].command.job == 2);
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
    const int jobs = *rc::gen::inRange(1, 4);
    int most_rounds = 1;
    for (int job = 1; job <= jobs; ++job) {
      const int patches = *rc::gen::inRange(1, 6);
      const auto method = *rc::gen::element<std::string>("exact", "pipefusion", "distrifusion");
      const auto plan =
          some_plan(*rc::gen::inRange(1, 6), patches, *rc::gen::inRange(0, 4), parallelism, method);
      most_rounds = std::max(most_rounds, static_cast<int>(plan.micro_steps.size()));
      for (const auto& parts : plan.batch_parts)
        most_rounds = std::max(most_rounds, static_cast<int>(parts.size()));
      play.finished_graphs[job] = schedule::make_task_graph(plan);
      play.add(job, plan, actors);
    }
    play.pump();
    while (play.advance()) {
      for (const ActorId actor : actors)
        RC_ASSERT(play.dispatcher.outstanding(actor) <= window);
      if (*rc::gen::inRange(0, 3) != 0) play.pump();
    }
    play.pump();
    while (play.advance())
      play.pump();
    for (int job = 1; job <= jobs; ++job)
      RC_ASSERT(play.dispatcher.complete(job));
    RC_ASSERT(play.edges_agree());
    // Slots: what is on its way holds at most one for each patch or part of the batch (and the
    // whole picture between modes), what is issued ahead at most a window.
    RC_ASSERT(play.most_posted <= most_rounds + 1 + window);
  });
  CHECK(holds);
}
