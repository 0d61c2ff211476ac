#include <map>
#include <random>
#include <set>

#include "tests/controller/simulated_actors.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::test;

namespace {

using Key = std::pair<JobId, std::uint32_t>;

std::vector<ActorId> actors_from(ActorId first, int count) {
  std::vector<ActorId> actors;
  for (int i = 0; i < count; ++i)
    actors.push_back(first + static_cast<ActorId>(i));
  return actors;
}

/// Jobs in groups, each group on actors of its own. Groups are asked in turn who is next, one actor
/// at a time, and each group's own random numbers say which. Notes what each group was given.
class Groups {
 public:
  explicit Groups(const std::vector<int>& groups) {
    for (const int group : groups) {
      for (int i = 0; i < 2; ++i) {
        const JobId job = static_cast<JobId>(10 * group + i);
        graphs_[job] = schedule::make_task_graph(
            some_plan(3, 2 + group % 3, 1, {.cfg = 1 + group % 2, .pp = 2}));
        actors_[job] = actors_from(static_cast<ActorId>(100 * group), graphs_[job].world);
        dispatcher_.add_job(job, graphs_[job], actors_[job],
                            {.share = std::to_string(job), .machine = static_cast<JobId>(group)});
      }
      random_.emplace(group, group);
    }
  }

  /// Plays to the end and returns the commands per group, in the order of issue.
  std::map<int, std::vector<std::pair<ActorId, Key>>> play() {
    for (bool some = true; some;) {
      some = false;
      for (const auto& issue : dispatcher_.issue()) {
        const Key key{issue.command.job, issue.command.task};
        order_[static_cast<int>(key.first / 10)].emplace_back(issue.actor, key);
        if (!issue.command.receive) mailbox_[issue.actor].push_back(key);
      }
      for (auto& [group, random] : random_)
        some |= end_one(group, random);
    }
    return order_;
  }

 private:
  bool end_one(int group, std::mt19937_64& random) {
    std::vector<ActorId> able;
    for (const auto& [actor, queue] : mailbox_) {
      if (static_cast<int>(actor / 100) == group && !queue.empty() &&
          inputs_are_there(queue.front()))
        able.push_back(actor);
    }
    if (able.empty()) return false;
    const auto actor = able[random() % able.size()];
    const auto [job, task] = mailbox_[actor].front();
    mailbox_[actor].pop_front();
    dispatcher_.finish(job, task, actor, 1e-3 * static_cast<double>(random() % 30));
    return true;
  }

  bool inputs_are_there(const Key& key) {
    const auto& before = graphs_[key.first].tasks[key.second].predecessors;
    return std::ranges::all_of(before,
                               [&](auto task) { return dispatcher_.is_done(key.first, task); });
  }

  Dispatcher dispatcher_{4};
  std::map<JobId, schedule::TaskGraph> graphs_;
  std::map<JobId, std::vector<ActorId>> actors_;
  std::map<ActorId, std::deque<Key>> mailbox_;
  std::map<int, std::mt19937_64> random_;
  std::map<int, std::vector<std::pair<ActorId, Key>>> order_;
};

}  // namespace

TEST_CASE("jobs that share no actor with others have the order that they would have alone") {
  auto together = Groups({1, 2, 3, 4, 5}).play();
  for (int group = 1; group <= 5; ++group) {
    auto alone = Groups({group}).play();
    CHECK(alone[group].size() > 50);
    CHECK((together[group] == alone[group]));
  }
}

TEST_CASE("jobs that a third one connects, and that it leaves apart again, run to their end") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SimulatedActors play(3, seed);
    std::mt19937_64 random(seed);
    const auto plan = some_plan(4, 2, 1, {.pp = 2});
    const auto wide = some_plan(2, 2, 1, {.cfg = 2, .pp = 2});
    play.add(1, plan, {0, 1});
    play.add(2, plan, {2, 3});
    play.pump();
    const auto advance = [&](int times) {
      for (int i = 0; i < times && play.advance(); ++i)
        play.pump();
    };
    advance(static_cast<int>(random() % 8));
    play.add(3, wide, {1, 0, 3, 2}, {.priority = static_cast<int>(random() % 2)});
    play.pump();
    advance(static_cast<int>(random() % 12));
    if (seed % 3 == 0) play.add(4, plan, {3, 4});
    if (seed % 2 == 0) play.drop(3);
    play.pump();
    advance(10'000);
    for (const JobId job : {1, 2, 3, 4}) {
      if (play.dispatcher.has(job)) CHECK(play.dispatcher.complete(job));
    }
    CHECK(play.groups_agree());
    CHECK(play.edges_agree());
  }
}

TEST_CASE("any jobs on up to 1,024 actors run to their end, in the same order for all members") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... from) {
      const int all[] = {from...};
      return all[random() % std::size(all)];
    };
    constexpr int kWindow = 4;
    SimulatedActors play(kWindow, seed);
    ActorId next = 0;
    JobId jobs = 0;
    while (next < 1024) {
      const wire::Parallelism degrees{.dp = pick(1, 2),
                                      .cfg = pick(1, 2),
                                      .pp = pick(1, 2, 4, 8),
                                      .ulysses = pick(1, 2, 4),
                                      .ring = pick(1, 3, 4),
                                      .tp = pick(1, 2)};
      const auto plan = some_plan(pick(1, 2, 3), pick(1, 2, 4), pick(0, 1), degrees);
      const int world = plan.degrees.world();
      // Some share all actors of the one before, some a part, some none.
      const auto back = std::min<ActorId>(next, static_cast<ActorId>(pick(0, 0, world / 2, world)));
      play.add(++jobs, plan, actors_from(next - back, world),
               {.priority = pick(0, 0, 1), .share = std::to_string(pick(1, 2))});
      next += static_cast<ActorId>(world) - back;
    }
    play.pump();
    while (play.advance())
      play.pump();
    for (JobId job = 1; job <= jobs; ++job)
      CHECK(play.dispatcher.complete(job));
    for (ActorId actor = 0; actor < next; ++actor)
      CHECK(play.dispatcher.outstanding(actor) == 0);
    CHECK(play.groups_agree());
    CHECK(play.edges_agree());
  }
}
