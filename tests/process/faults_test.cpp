#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

cluster::ClusterOptions mortal(cluster::ClusterOptions options) {
  options.max_recoveries = 0;
  return options;
}

/// Moment at which an actor is killed, and what status and the cause say that it was doing then.
struct Moment {
  HoldAt at;
  int stage;  // of the victim
  const char* doing;
};

FaultCluster& fault_cluster() {
  // Jobs end by their first loss here; how they outlive it is in recovery_test.cpp.
  static FaultCluster shared([] {
    auto options = mortal(actors(4));
    options.memory_limit = memory_of(whole_demo_job());
    return options;
  }());
  return shared;
}

const JobResult& undisturbed() {
  static const JobResult result = fault_cluster().run(demo_job());
  return result;
}

void check_same(const JobResult& result) {
  REQUIRE(result.pictures.size() == 1);
  CHECK(result.pictures[0].png == undisturbed().pictures[0].png);
  CHECK(result.latents->data == undisturbed().latents->data);
}

}  // namespace

TEST_CASE("kill -9 at every moment of a job: it fails at once with its cause, the next one works") {
  undisturbed();
  auto& cluster = fault_cluster();
  const Moment moments[] = {{{"loading"}, 0, "loading"},
                            {{"connecting"}, 1, "connecting"},
                            {{"text"}, 0, "text"},
                            {{"step", 0}, 1, "step 0 stage 1"},  // of the warm-up
                            {{"step", 2, 1}, 1, "step 2 patch 1 stage 1"},
                            {{"step", 4, 3}, 0, "step 4 patch 3 stage 0"},
                            {{"decode"}, 1, "decode"}};
  for (const auto& moment : moments) {
    CAPTURE(std::string(moment.doing));
    const auto restarts = cluster.restarts();
    const auto actor = cluster.actor_of_stage(moment.stage);
    // The memory is too small for both, so that there is something to load and to connect.
    if (moment.at.phase == "loading" || moment.at.phase == "connecting")
      cluster.run(whole_demo_job());
    cluster.hold(actor, moment.at);
    const auto job = cluster.submit(demo_job());
    const auto victim = cluster.held(actor);
    const auto doing = "job " + std::to_string(job) + " " + moment.doing;
    CHECK(victim.doing == doing + " (held)");
    const auto blow = Clock::now();
    kill(static_cast<pid_t>(victim.pid), SIGKILL);
    const auto fall = cluster.fall_of(job, blow);
    REQUIRE(fall);
    MESSAGE(std::string(moment.doing) << ": failed " << int(fall->seconds * 1000)
                                      << " ms after the kill: " << fall->error.what);
    CHECK(fall->seconds < kAtOnce);
    CHECK(has(fall->error.what, "actor " + std::to_string(victim.id) + " "));
    CHECK(has(fall->error.what, "pid " + std::to_string(victim.pid)));
    CHECK(has(fall->error.what, "signal 9"));
    CHECK(has(fall->error.what, "during " + doing));
    CHECK_FALSE(has(fall->error.what, "held"));
    CHECK(cluster.job(job)->state == JobState::failed);
    check_same(cluster.run(demo_job()));
    CHECK(cluster.restarts() == restarts + 1);
    CHECK(left_in_memory() == "");
    CHECK(has(cluster.status().recent_failures.back(), "signal 9"));
  }
}

TEST_CASE("kill -9 while a job's result is handed over: it keeps its picture and says what lacks") {
  undisturbed();
  auto& cluster = fault_cluster();
  const auto restarts = cluster.restarts();
  // The first stage holds no latents: it has only its figures to give, and does not get to it.
  const auto actor = cluster.actor_of_stage(0);
  cluster.hold(actor, {"ending"});
  const auto job = cluster.submit(demo_job());
  const auto victim = cluster.held(actor);
  kill(static_cast<pid_t>(victim.pid), SIGKILL);
  const auto result = cluster.client().wait(job, kPatience);
  if (!result) FAIL(result.error().what);
  check_same(result.value());
  const auto warnings = nlohmann::json::parse(result.value().report).at("warnings").dump();
  INFO(warnings);
  CHECK(has(warnings, "the figures of "));
  CHECK(has(warnings, " missing: "));
  REQUIRE(eventually(kPatience, [&] { return cluster.restarts() == restarts + 1; }));
  REQUIRE(cluster.whole());
  check_same(cluster.run(demo_job()));
}

TEST_CASE(
    "a held actor: released, at the end of its time, cancelled; it does not count as hanging") {
  auto options = actors(2);
  options.task_deadline = 8s;
  FaultCluster cluster(options);
  auto job = demo_job(6);
  job.parallelism = {.pp = 2};
  const auto alone = cluster.run(job);
  const auto same = [&](std::uint64_t id) {
    const auto result = cluster.client().wait(id, 600s);
    if (!result) FAIL(result.error().what);
    CHECK(result.value().latents->data == alone.latents->data);
  };
  auto& inspector = cluster.inspector();
  const auto pids = cluster.pids();
  cluster.hold(1, {.step = 2});
  const auto released = cluster.submit(job);
  CHECK(cluster.held(1).doing ==
        "job " + std::to_string(released) + " step 2 patch 0 stage 1 (held)");
  CHECK(inspector.mailbox(1).value().doing ==
        "job " + std::to_string(released) + " step 2 patch 0 (held)");
  // While it is held it gets the next hold, and longer than the deadline of a task.
  cluster.hold(1, {"step", 4, 1});
  REQUIRE(eventually(kPatience, [&] { return inspector.mailbox(1).value().doing_seconds > 10; }));
  const auto goes_on = inspector.inject(1, Fault::release);
  REQUIRE(goes_on);
  CHECK(goes_on.value() == "actor 1 goes on");
  REQUIRE(eventually(kPatience, [&] {
    return cluster.held(1).doing ==
           "job " + std::to_string(released) + " step 4 patch 1 stage 1 (held)";
  }));
  CHECK(cluster.pids() == pids);
  cluster.release(1);
  same(released);

  const auto timed = inspector.inject(0, Fault::hold, 0.2, {"decode"});
  REQUIRE(timed);
  CHECK(timed.value() ==
        "actor 0 is held when it comes to decode, for 0.2 s at most; it has no job now: this waits "
        "for its next one");
  const auto taken_back = inspector.inject(0, Fault::release);
  REQUIRE(taken_back);
  CHECK(taken_back.value() == "actor 0 will not be held");
  REQUIRE(inspector.inject(1, Fault::hold, 0.2, {"text"}));
  same(cluster.submit(job));

  cluster.hold(0, {"step", 3});
  const auto cancelled = cluster.submit(job);
  cluster.held(0);
  CHECK(cluster.client().cancel(cancelled));
  CHECK_FALSE(cluster.client().wait(cancelled, kPatience));
  same(cluster.submit(job));

  const auto refused = [&](double seconds, const HoldAt& at, const std::string& why) {
    const auto answer = inspector.inject(0, Fault::hold, seconds, at);
    REQUIRE_FALSE(answer);
    CHECK(answer.error().code == ErrorCode::bad_request);
    CHECK(has(answer.error().what, why));
  };
  refused(1, {"steps"},
          "phase \"steps\" is not loading, connecting, beginning, text, step, decode");
  refused(0, {"text"}, "seconds: a hold needs more than 0");
  refused(1, {"text", 3}, "step and patch are those of a hold at a step");
  refused(1, {"step", -2}, "step and patch: numbers from 0");
}

TEST_CASE("kill -9 of any actor at any step and patch: the job ends by it, and by nothing else") {
  undisturbed();
  auto& cluster = fault_cluster();
  std::mt19937 random(20);
  const auto steps = static_cast<unsigned>(demo_job().request.steps);
  for (int round = 0; round < 8; ++round) {
    REQUIRE(cluster.whole());
    const auto pids = cluster.pids();
    const auto held = static_cast<std::uint32_t>(random() % pids.size());
    const auto victim = random() % pids.size();
    const HoldAt at{"step", static_cast<int>(random() % steps)};
    CAPTURE(held);
    CAPTURE(victim);
    CAPTURE(at.step);
    cluster.hold(held, at);
    const auto job = cluster.submit(demo_job());
    cluster.held(held);
    const auto blow = Clock::now();
    kill(pids[victim], SIGKILL);
    const auto fall = cluster.fall_of(job, blow);
    REQUIRE(fall);
    INFO(fall->error.what);
    CHECK(has(fall->error.what, "actor " + std::to_string(victim) + " "));
    CHECK(has(fall->error.what, "signal 9"));
    CHECK(fall->seconds < kAtOnce);
  }
  check_same(cluster.run(demo_job()));
}

TEST_CASE("an actor that dies between jobs costs none of them") {
  undisturbed();
  for (int round = 0; round < 3; ++round) {
    const auto restarts = fault_cluster().restarts();
    kill(fault_cluster().pids()[round], SIGKILL);
    // At once, while its death may be unknown; and after that, on what is respawned.
    const auto job = fault_cluster().submit(demo_job());
    const auto fall = fault_cluster().fall_of(job, Clock::now());
    if (fall) CHECK(has(fall->error.what, "signal 9"));
    check_same(fault_cluster().run(demo_job()));
    CHECK(fault_cluster().restarts() == restarts + 1);
  }
  const auto before = fault_cluster().status().actors[1].incarnation;
  kill(fault_cluster().pids()[1], SIGKILL);
  REQUIRE(eventually(kPatience,
                     [&] { return fault_cluster().status().actors[1].incarnation != before; }));
  REQUIRE(fault_cluster().whole());
  check_same(fault_cluster().run(demo_job()));
}

TEST_CASE("an actor that hangs is found by its heartbeats and killed") {
  undisturbed();
  fault_cluster().hold(0, {"step", 2});
  const auto job = fault_cluster().submit(demo_job());
  fault_cluster().held(0);
  const auto pid = fault_cluster().pids()[1];
  const auto blow = Clock::now();
  kill(pid, SIGSTOP);
  const auto fall = fault_cluster().fall_of(job, blow);
  REQUIRE(fall);
  MESSAGE("failed " << fall->seconds << " s after SIGSTOP: " << fall->error.what);
  CHECK(fall->seconds < kAtOnce);
  CHECK(has(fall->error.what, "actor 1 "));
  const std::string silent = "no sign of life for ";
  const auto at = fall->error.what.find(silent);
  REQUIRE(at != std::string::npos);
  CHECK(std::stoi(fall->error.what.substr(at + silent.size())) >= 5000);  // milliseconds
  CHECK(gone({pid}));
  check_same(fault_cluster().run(demo_job()));
}

TEST_CASE("stopping while weights load, while a job runs and while an actor is dying") {
  for (const std::string phase : {"loading", "denoising", "dying"}) {
    std::vector<pid_t> pids;
    {
      FaultCluster doomed(mortal(actors(4)));
      pids = doomed.pids();
      doomed.hold(0, {phase == "loading" ? "loading" : "step"});
      const auto job = doomed.submit(demo_job());
      doomed.held(0);
      if (phase == "dying") kill(pids[2], SIGKILL);
      const auto begin = Clock::now();
      doomed.cluster().stop();
      CHECK(Clock::now() - begin < kPatience);
      const auto result = doomed.client().wait(job, kPatience);
      REQUIRE(!result);
      INFO(result.error().what);
      CHECK((has(result.error().what, "stopped") || has(result.error().what, "signal 9") ||
             result.error().code == ErrorCode::lost));
    }
    for (const auto pid : pids)
      CHECK(!is_alive(pid));
  }
  CHECK(left_in_memory() == "");
}
