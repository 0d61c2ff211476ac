#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

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

/// What an actor can be killed at. `doing` is what status says of the victim then, as the cause
/// must.
struct Moment {
  const char* phase;
  const char* doing;
  const char* also = "";
  const char* without = "\n";  // what it must not say
  int warmup = 1;              // synchronous steps of the job, which has no patches in them
};

/// The actor to kill, once the job is at that moment and all actors are frozen there.
std::optional<ActorInfo> victim_at(FaultCluster& cluster, std::uint64_t id, const Moment& moment) {
  cluster.freeze();
  std::this_thread::sleep_for(50ms);  // what they sent before arrives
  const auto own = "job " + std::to_string(id) + " ";
  for (const auto& actor : cluster.status().actors) {
    if (has(actor.doing, own + moment.doing) && has(actor.doing, moment.also) &&
        !has(actor.doing, moment.without))
      return actor;
  }
  return std::nullopt;
}

/// Runs jobs until one could be caught at that moment, kills the actor there; answers its number.
std::uint64_t kill_at(FaultCluster& cluster, const Moment& moment, ActorInfo& victim,
                      Clock::time_point& blow) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    // The memory is too small for both, so that there is something to load.
    if (std::string(moment.phase) == "loading") cluster.run(whole_demo_job());
    // Shared with the job, which goes on when this has returned.
    const auto there = std::make_shared<std::atomic<bool>>(false);
    // Long where it is to be met in its pipeline, which it comes to after its warm-up.
    auto submission = demo_job(std::string(moment.also) == "patch" ? 200 : 6);
    submission.request.warmup_steps = moment.warmup;
    const auto job = cluster.submit(
        submission, [there, phase = std::string(moment.phase)](const Progress& progress) {
          if (progress.phase == phase) *there = true;
        });
    REQUIRE(
        eventually(kPatience, [&] { return *there || cluster.job(job)->state == "succeeded"; }));
    std::this_thread::sleep_for(attempt % 4 * 15ms);
    const auto found = victim_at(cluster, job, moment);
    if (found) {
      victim = *found;
      kill(static_cast<pid_t>(victim.pid), SIGKILL);
      blow = Clock::now();
      cluster.thaw();
      return job;
    }
    cluster.thaw();
    (void)cluster.client().cancel(job);
    (void)cluster.client().wait(job, kPatience);
  }
  FAIL("no job could be caught at " << moment.phase << " " << moment.doing);
  return 0;
}

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
  const Moment moments[] = {{"loading", "loading"},
                            {"text", "text"},
                            {"denoising", "step", "stage 1", "patch", 6},  // warm-up
                            {"denoising", "step", "patch", "stage 1"},
                            {"denoising", "step", "patch", "stage 0"},
                            {"decoding", "decode"}};
  for (const auto& moment : moments) {
    const auto restarts = fault_cluster().restarts();
    ActorInfo victim;
    Clock::time_point blow;
    std::uint64_t job = 0, blows = 0;
    std::optional<Fall> fall;
    for (;;) {
      job = kill_at(fault_cluster(), moment, victim, blow);
      fall = fault_cluster().fall_of(job, blow);
      ++blows;
      // A word of the victim's that was still on its way may have moved the job on.
      if ((fall && has(fall->error.what, moment.doing)) || blows == 5) break;
      REQUIRE(
          eventually(kPatience, [&] { return fault_cluster().restarts() == restarts + blows; }));
      REQUIRE(fault_cluster().whole());
    }
    REQUIRE(fall);
    MESSAGE(std::string(moment.phase)
            << " " << std::string(moment.also) << ": failed " << int(fall->seconds * 1000)
            << " ms after the kill: " << fall->error.what);
    CHECK(fall->seconds < kAtOnce);
    CHECK(has(fall->error.what, "actor " + std::to_string(victim.id) + " "));
    CHECK(has(fall->error.what, "pid " + std::to_string(victim.pid)));
    CHECK(has(fall->error.what, "signal 9"));
    CHECK(has(fall->error.what, std::string("job ") + std::to_string(job)));
    CHECK(has(fall->error.what, moment.doing));
    CHECK(has(fall->error.what, moment.also));
    CHECK(fault_cluster().job(job)->state == "failed");
    check_same(fault_cluster().run(demo_job()));
    CHECK(fault_cluster().restarts() == restarts + blows);
    CHECK(left_in_memory() == "");
    CHECK(has(fault_cluster().status().recent_failures.back(), "signal 9"));
  }
}

TEST_CASE("kill -9 at random: a job ends by it or succeeds, never anything else") {
  undisturbed();
  std::mt19937 random(20);
  for (int round = 0; round < 8; ++round) {
    REQUIRE(fault_cluster().whole());
    const auto pids = fault_cluster().pids();
    const auto job = fault_cluster().submit(demo_job());
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 2500));
    const auto blow = Clock::now();
    kill(pids[random() % pids.size()], SIGKILL);
    if (const auto fall = fault_cluster().fall_of(job, blow)) {
      INFO(fall->error.what);
      CHECK(has(fall->error.what, "signal 9"));
      CHECK(fall->seconds < kAtOnce);
    }
  }
  check_same(fault_cluster().run(demo_job()));
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
  std::atomic<bool> there = false;
  const auto job = fault_cluster().submit(demo_job(900), [&](const Progress& progress) {
    there = there || progress.phase == "denoising";
  });
  REQUIRE(eventually(kPatience, [&] { return there.load(); }));
  const auto pid = fault_cluster().pids()[1];
  const auto blow = Clock::now();
  kill(pid, SIGSTOP);
  const auto fall = fault_cluster().fall_of(job, blow);
  REQUIRE(fall);
  MESSAGE("failed " << fall->seconds << " s after SIGSTOP: " << fall->error.what);
  CHECK(fall->seconds > 3);
  CHECK(fall->seconds < kAtOnce);
  CHECK(has(fall->error.what, "actor 1 "));
  CHECK(has(fall->error.what, "no sign of life"));
  CHECK(gone({pid}));
  check_same(fault_cluster().run(demo_job()));
}

TEST_CASE("an idle cluster does not take its silence for a hang") {
  auto options = actors(1);
  options.max_recoveries = 100;
  std::uint64_t restarts = 1;
  // In the midst of a job a busy machine may well keep an actor from its work for a second: then
  // the deadline is longer, and so is the silence.
  for (const std::chrono::seconds deadline : {1s, 4s, 16s}) {
    if (restarts == 0) break;
    options.task_deadline = deadline;
    FaultCluster idle(options);
    idle.run(tiny_job());
    for (int round = 0; round < 5 && idle.restarts() == 0; ++round) {
      std::this_thread::sleep_for(deadline + 300ms);
      idle.run(tiny_job());
    }
    restarts = idle.restarts();
  }
  CHECK(restarts == 0);
}

TEST_CASE("stopping while weights load, while a job runs and while an actor is dying") {
  for (const std::string phase : {"loading", "denoising", "dying"}) {
    std::vector<pid_t> pids;
    {
      FaultCluster doomed(mortal(actors(4)));
      pids = doomed.pids();
      std::atomic<bool> there = false;
      const auto job = doomed.submit(demo_job(900), [&](const Progress& progress) {
        there = there || progress.phase == (phase == "loading" ? "loading" : "denoising");
      });
      REQUIRE(eventually(kPatience, [&] { return there.load(); }));
      if (phase == "dying") kill(pids[2], SIGKILL);
      const auto begin = Clock::now();
      doomed.cluster().stop();
      CHECK(Clock::now() - begin < kPatience);
      const auto result = doomed.client().wait(job, kPatience);
      REQUIRE(!result);
      INFO(result.error().what);
      CHECK((has(result.error().what, "stopped") || has(result.error().what, "signal 9") ||
             result.error().code == "lost"));
    }
    for (const auto pid : pids)
      CHECK(!is_alive(pid));
  }
  CHECK(left_in_memory() == "");
}
