#include <rapidcheck.h>
#include <set>

#include "controller/plan/layout.h"
#include "tests/controller/simulated_actors.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE(
    "any jobs on shared actors run to their end, in the same order at both ends of every edge") {
  const bool holds = rc::check([] {
    const int window = *rc::gen::inRange(1, 5);
    SimulatedActors play(window, *rc::gen::arbitrary<std::uint64_t>());
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
      const auto method =
          *rc::gen::element<Method>(Method::exact, Method::pipefusion, Method::distrifusion);
      const int steps = *rc::gen::inRange(1, 6);
      auto plan = some_plan(steps, patches, *rc::gen::inRange(0, 4), parallelism, method);
      for (int step = 0; step < steps; ++step) {
        if (*rc::gen::inRange(0, 3) == 0) plan.request.refill_steps.push_back(step);
      }
      most_rounds = std::max(most_rounds, static_cast<int>(plan.micro_steps.size()));
      for (auto* parts : {&plan.batch_parts, &plan.decode_parts}) {
        for (auto& of_replica : *parts) {
          const int count = of_replica.back().end;
          if (*rc::gen::inRange(0, 3) == 0)
            of_replica = plan::split_evenly(count, *rc::gen::inRange(1, count + 1));
        }
      }
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
