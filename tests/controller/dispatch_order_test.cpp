#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "controller/schedule/dispatcher.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using schedule::ActorId;
using schedule::Dispatcher;
using schedule::JobId;
using schedule::JobTerms;
using wire::TaskKind;

namespace {

plan::Plan guided_plan(int steps, int patches, int warmup, wire::Parallelism parallelism,
                       double guidance = 1) {
  wire::ImageRequest request;
  request.prompts = {"x"};
  request.steps = steps;
  request.guidance_scale = guidance;
  request.method = patches > 1 ? Method::pipefusion : Method::exact;
  request.num_pipeline_patch = patches;
  request.warmup_steps = warmup;
  return plan::make_plan(test::sample_model(), request, parallelism);
}

/// Seconds that tasks really take, whatever the dispatcher believes.
struct Truth {
  double text = 0.01;
  double unit = 1e-5;  // of a micro-step's work
  double decode = 0.05;
  double of(const schedule::Task& task) const {
    if (task.kind == TaskKind::encode_text) return text;
    if (task.kind == TaskKind::decode) return decode;
    return unit * task.work;
  }
};

/// Plays jobs on actors that run their queues in order, on a clock of its own: every task ends when
/// it must, at all its members at once, and the dispatcher hears of it then.
class TimedActors {
 public:
  explicit TimedActors(schedule::Limits limits = {}, Truth truth = {})
      : dispatcher(limits), truth_(truth) {}

  void add(JobId id, const plan::Plan& plan, JobTerms terms = {}) {
    std::vector<ActorId> actors(plan.degrees.world());
    for (std::size_t i = 0; i < actors.size(); ++i)
      actors[i] = static_cast<ActorId>(i);
    actors_of_[id] = actors;
    dispatcher.add_job(id, schedule::make_task_graph(plan), actors, std::move(terms));
    began[id] = now;
    pump();
  }

  /// Goes to the next end of a task; false when nothing runs any more.
  bool next() {
    start_what_can();
    if (running_.empty()) return false;
    const auto first =
        std::min_element(running_.begin(), running_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.end, a.key) < std::pair(b.end, b.key);
        });
    const auto [end, key] = *first;
    running_.erase(first);
    now = end;
    const auto [job, id] = key;
    const auto& task = dispatcher.task(job, id);
    const double seconds = truth_.of(task);
    for (const auto rank : task.ranks) {
      const ActorId actor = actors_of_[job][rank];
      busy[actor] += seconds;
      mailbox_[actor].erase(mailbox_[actor].begin());
      dispatcher.finish(job, id, actor, seconds);
    }
    if (dispatcher.complete(job)) ended[job] = now;
    pump();
    return true;
  }

  void play() {
    while (next()) {
    }
  }
  void play_until(double time) {
    while (now < time && next()) {
    }
  }

  Dispatcher dispatcher;
  double now = 0;
  std::map<ActorId, double> busy;
  std::map<JobId, double> began, ended;
  std::vector<std::pair<JobId, std::uint32_t>> order;  // as issued

 private:
  using Key = std::pair<JobId, std::uint32_t>;
  struct Running {
    double end;
    Key key;
  };

  void pump() {
    for (const auto& issue : dispatcher.issue()) {
      if (issue.command.receive) continue;
      const Key key{issue.command.job, issue.command.task};
      mailbox_[issue.actor].push_back(key);
      if (order.empty() || order.back() != key) order.push_back(key);
    }
  }

  void start_what_can() {
    for (auto& [actor, queue] : mailbox_) {
      if (queue.empty()) continue;
      const Key key = queue.front();
      const auto& task = dispatcher.task(key.first, key.second);
      const auto at_work = [&](const Running& running) { return running.key == key; };
      if (std::any_of(running_.begin(), running_.end(), at_work)) continue;
      const bool heads = std::all_of(task.ranks.begin(), task.ranks.end(), [&](auto rank) {
        const auto& other = mailbox_[actors_of_[key.first][rank]];
        return !other.empty() && other.front() == key;
      });
      const bool inputs =
          std::all_of(task.predecessors.begin(), task.predecessors.end(),
                      [&](auto before) { return dispatcher.is_done(key.first, before); });
      if (heads && inputs) running_.push_back({now + truth_.of(task), key});
    }
  }

  Truth truth_;
  std::map<JobId, std::vector<ActorId>> actors_of_;
  std::map<ActorId, std::vector<Key>> mailbox_;
  std::vector<Running> running_;
};

/// Seconds of 8 jobs one after another ÷ seconds of all at once.
double gain(const plan::Plan& plan, Truth truth = {}) {
  TimedActors alone({}, truth);
  for (JobId job = 1; job <= 8; ++job) {
    alone.add(job, plan);
    alone.play();
    alone.dispatcher.remove(job);
  }
  TimedActors together({}, truth);
  for (JobId job = 1; job <= 8; ++job)
    together.add(job, plan);
  together.play();
  return alone.now / together.now;
}

}  // namespace

TEST_CASE("jobs fill each other's bubbles") {
  // A picture without guidance has one part, so alone it keeps one of two stages busy.
  const Truth denoising_only{.text = 1e-4, .unit = 1e-5, .decode = 1e-4};
  CHECK(gain(guided_plan(20, 1, 0, {.pp = 2}), denoising_only) > 1.85);
  CHECK(gain(guided_plan(20, 1, 0, {.pp = 4}), denoising_only) > 3.4);
  // With guidance the two branches follow one another: 2 of 3 slots are busy already.
  CHECK(gain(guided_plan(20, 1, 0, {.pp = 2}, 4.5), denoising_only) > 1.42);
  CHECK(gain(guided_plan(20, 4, 1, {.pp = 2}), denoising_only) > 1.02);
}

TEST_CASE("an uneven stage is kept busy, however wrong the first guesses are") {
  TimedActors actors({}, {.text = 0.02, .unit = 1e-5, .decode = 0.3});
  for (JobId job = 1; job <= 8; ++job)
    actors.add(job, guided_plan(20, 1, 0, {.pp = 2, .stages = {3, 5}}));
  actors.play();
  // The second stage decodes, too, so it decides; the text holds both.
  CHECK(actors.busy[1] > 0.9 * actors.now);
}

TEST_CASE("the job of higher priority goes first") {
  Dispatcher dispatcher(1);
  dispatcher.add_job(1, schedule::make_task_graph(guided_plan(1, 1, 0, {})), {0});
  dispatcher.add_job(2, schedule::make_task_graph(guided_plan(1, 1, 0, {})), {0}, {.priority = 5});
  const auto issued = dispatcher.issue();
  REQUIRE(issued.size() == 1);
  CHECK(issued[0].command.job == 2);
}

TEST_CASE("a job of higher priority takes as long as alone, and lower ones what it leaves") {
  const auto plan = guided_plan(30, 1, 0, {.pp = 2});
  TimedActors alone;
  alone.add(1, plan, {.priority = 1});
  alone.play();
  TimedActors mixed;
  for (JobId job = 2; job <= 4; ++job)
    mixed.add(job, plan);
  mixed.play_until(0.2);
  mixed.add(1, plan, {.priority = 1});
  mixed.play();
  // What was issued before it came is not called back, nor is a decode under way.
  CHECK(mixed.ended[1] - mixed.began[1] < 1.25 * alone.now);
  CHECK(mixed.ended[1] < mixed.ended[3]);
  CHECK(mixed.ended[1] < mixed.ended[4]);
  // Both stages were busy all the same: four jobs far sooner than one after another.
  CHECK(mixed.now < 2.6 * alone.now);
}

TEST_CASE("who has had least goes first, and within a share the older job") {
  const auto plan = guided_plan(40, 1, 0, {});
  TimedActors actors;
  for (JobId job = 1; job <= 3; ++job)
    actors.add(job, plan, {.share = "many"});
  actors.add(4, plan, {.share = "one"});
  actors.play();
  // Job 4 gets half of the actor while the others share the other half.
  CHECK(actors.ended[1] < actors.ended[2]);
  CHECK(actors.ended[2] < actors.ended[3]);
  CHECK(actors.ended[4] < 1.1 * 2 * actors.now / 4);
  CHECK(actors.ended[4] > 0.9 * 2 * actors.now / 4);
}

TEST_CASE("a share that comes late has no claim on the past") {
  const auto plan = guided_plan(40, 1, 0, {});
  TimedActors actors;
  actors.add(1, plan, {.share = "early"});
  actors.play_until(1);
  actors.add(2, plan, {.share = "early"});
  actors.add(3, plan, {.share = "late"});
  const double from = actors.dispatcher.service(1);
  actors.play_until(actors.now + 0.5);
  const double early = actors.dispatcher.service(1) - from + actors.dispatcher.service(2);
  CHECK(actors.dispatcher.service(3) == doctest::Approx(early).epsilon(0.3));
}

TEST_CASE("a task of many members is not passed over for ever by tasks of few") {
  TimedActors actors;
  // Both stages are always in demand by the first share, and never free at the same time.
  for (JobId job = 1; job <= 4; ++job)
    actors.add(job, guided_plan(60, 1, 0, {.pp = 2, .stages = {3, 5}}), {.share = "stream"});
  actors.play_until(0.3);
  actors.add(9, guided_plan(2, 1, 0, {.pp = 2, .stages = {3, 5}}), {.share = "late"});
  actors.play();
  CHECK(actors.ended[9] < 0.5 * actors.ended[1]);
}

TEST_CASE("what is cancelled has drained soon, however long its tasks are") {
  TimedActors actors({}, {.text = 0.1, .unit = 1e-4, .decode = 1});
  const auto plan = guided_plan(50, 1, 0, {.pp = 2});
  actors.add(1, plan);
  actors.play_until(3);
  const double step = 1e-4 * 2 * actors.dispatcher.task(1, 1).work;
  const double asked = actors.now;
  actors.dispatcher.cancel(1);
  actors.play();
  CHECK(actors.dispatcher.drained(1));
  CHECK(actors.now - asked < 2.01 * step);
}

TEST_CASE("the same events give the same order") {
  const auto play = [] {
    TimedActors actors;
    for (JobId job = 1; job <= 4; ++job) {
      actors.add(job, guided_plan(6, job % 2 ? 3 : 1, 1, {.pp = 2}),
                 {.priority = static_cast<int>(job % 3), .share = job > 2 ? "a" : "b"});
    }
    actors.play();
    return actors.order;
  };
  CHECK(play() == play());
}

TEST_CASE("many jobs of many patches are issued quickly") {
  TimedActors actors;
  const auto start = std::clock();  // processor time: the machine may have other things to do
  for (JobId job = 1; job <= 8; ++job)
    actors.add(job, guided_plan(50, 8, 1, {.pp = 4}));
  actors.play();
  const double took = 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const auto tasks = static_cast<double>(actors.order.size());
  MESSAGE(tasks << " tasks, " << took / tasks << " µs a task, playing them included");
  CHECK(took / tasks < 500);  // generous: sanitizers, shared caches
}

TEST_CASE("a decode that has nothing to decode teaches nothing of one that has") {
  schedule::TaskSpeeds speeds;
  schedule::Task decode;
  decode.kind = wire::TaskKind::decode;
  decode.work = 1e6;
  auto nothing = decode;
  nothing.work = 0;
  const auto real = speeds.class_of(1, decode);
  const auto before = speeds.estimate(real, decode.work).seconds;
  speeds.learn(speeds.class_of(1, nothing), nothing.work, 1e-4);
  CHECK_FALSE(speeds.estimate(real, decode.work).measured);
  CHECK(speeds.estimate(real, decode.work).seconds == before);
}

TEST_CASE("speeds of the machines that were used last are remembered, and no more") {
  schedule::TaskSpeeds speeds;
  schedule::Task block;
  block.work = 10;
  const auto first = speeds.class_of(0, block);
  speeds.learn(first, block.work, 5);
  for (std::uint64_t machine = 1; machine < schedule::TaskSpeeds::kMachines; ++machine)
    speeds.learn(speeds.class_of(machine, block), block.work, 2);
  CHECK(speeds.estimate(speeds.class_of(0, block), block.work).seconds == doctest::Approx(5));
  speeds.class_of(schedule::TaskSpeeds::kMachines, block);
  CHECK(speeds.estimate(speeds.class_of(0, block), block.work).measured);
  CHECK_FALSE(speeds.estimate(speeds.class_of(1, block), block.work).measured);
  for (std::uint64_t machine = 1000; machine < 2000; ++machine)
    speeds.class_of(machine, block);
  CHECK_FALSE(speeds.estimate(speeds.class_of(0, block), block.work).measured);
  // A job that has it goes on with it.
  CHECK(speeds.estimate(first, block.work).seconds == doctest::Approx(5));
}
