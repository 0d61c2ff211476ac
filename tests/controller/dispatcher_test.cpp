#include "controller/schedule/dispatcher.h"

#include "tests/controller/simulated_actors.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::test;

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
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(3, 1, 0, {.pp = 2}, Method::exact)),
                     {0, 1});
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

TEST_CASE("a job that is paused after a step computes all up to it, patch by patch, and no more") {
  Dispatcher dispatcher(3);
  dispatcher.add_job(1, schedule::make_task_graph(some_plan(5, 4, 1, {.pp = 2})), {0, 1});
  const auto steps_issued = [&] {
    std::set<int> steps;
    for (auto issued = dispatcher.issue(); !issued.empty(); issued = dispatcher.issue()) {
      for (const auto& issue : issued)
        if (!issue.command.receive) steps.insert(issue.command.step);
      for (const ActorId actor : {0u, 1u}) {
        while (const auto at = dispatcher.current(actor))
          dispatcher.finish(at->first, at->second, actor);
      }
    }
    return steps;
  };
  const auto left_up_to = [&](int step) {
    const auto& tasks = dispatcher.graph(1).tasks;
    int left = 0;
    for (std::uint32_t id = 0; id < tasks.size(); ++id)
      left += tasks[id].step <= step && !dispatcher.is_done(1, id) ? 1 : 0;
    return left;
  };
  CHECK(dispatcher.pause(1, 2));
  CHECK(steps_issued() == std::set<int>{0, 1, 2});
  CHECK(left_up_to(2) == 0);
  // One by one from there, and the next stop.
  CHECK(dispatcher.step(1));
  CHECK(steps_issued() == std::set<int>{3});
  CHECK(left_up_to(3) == 7);
  CHECK(dispatcher.pause(1, 3));
  CHECK(dispatcher.step(1));  // which is taken by a task of the next step
  CHECK(steps_issued() == std::set<int>{3, 4});
  CHECK(left_up_to(3) == 0);
  CHECK(left_up_to(4) == 7);
  // Nothing of what is left, until it is let go.
  CHECK(dispatcher.pause(1));
  CHECK(steps_issued().empty());
  CHECK(dispatcher.resume(1));
  CHECK(steps_issued() == std::set<int>{4, 5});
  CHECK(dispatcher.complete(1));
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
