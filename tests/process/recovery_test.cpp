#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

nlohmann::json report_of(const JobResult& result) {
  return nlohmann::json::parse(result.report);
}

void check_recovered_same(const JobResult& one, const JobResult& other) {
  REQUIRE(one.pictures.size() == other.pictures.size());
  for (std::size_t i = 0; i < one.pictures.size(); ++i)
    CHECK(one.latents->data == other.latents->data);
}

Submission job_of(const std::string& method, const Parallelism& degrees, int steps) {
  auto submission = demo_job(steps);
  submission.request.method = method;
  if (method == "exact") submission.request.num_pipeline_patch = 1;
  submission.parallelism = degrees;
  return submission;
}

}  // namespace

TEST_CASE("kill -9: an exact job ends bit-identical to an undisturbed one, on the same weights") {
  FaultCluster cluster(actors(4));
  for (const Parallelism& degrees :
       {Parallelism{.cfg = 2, .pp = 2}, Parallelism{.ulysses = 2, .tp = 2}}) {
    CAPTURE(name_of(degrees));
    const auto job = job_of("exact", degrees, 12);
    const auto undisturbed = cluster.run(job);
    const auto restarts = cluster.restarts();
    std::uint64_t blows = 0;
    for (const std::size_t victim : {0, 3}) {
      const auto result = cluster.struck(job, 4, [&](std::uint64_t) {
        ++blows;
        kill(cluster.pids().at(victim), SIGKILL);
      });
      check_recovered_same(result, undisturbed);
      const auto recoveries = report_of(result)["recoveries"];
      REQUIRE(recoveries.size() == 1);
      CHECK(has(recoveries[0]["cause"], "signal 9"));
      CHECK(report_of(result)["request"]["refill_steps"].empty());
      MESSAGE(name_of(degrees) << ": went on at step " << recoveries[0]["step"] << " after "
                               << recoveries[0]["seconds"] << " s");
    }
    CHECK(cluster.restarts() == restarts + blows);
  }
  CHECK(left_in_memory() == "");
}

TEST_CASE("kill -9: samplers that draw noise go on where their generator was") {
  FaultCluster cluster(actors(2));
  for (const std::string sampler : {"euler-ancestral", "sde-dpmsolver++"}) {
    CAPTURE(sampler);
    auto job = job_of("exact", {.pp = 2}, 12);
    job.request.sampler = sampler;
    const auto undisturbed = cluster.run(job);
    auto other = job;
    other.request.sampler = sampler == "euler-ancestral" ? "euler" : "dpmsolver++";
    CHECK(cluster.run(other).latents->data != undisturbed.latents->data);  // it does draw
    const auto result =
        cluster.struck(job, 6, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
    check_recovered_same(result, undisturbed);
  }
}

TEST_CASE("kill -9: a stale job says which step it filled anew, and can be made again with it") {
  FaultCluster cluster(actors(4));
  for (const std::string method : {"pipefusion", "distrifusion"}) {
    for (const std::string kv : {"stale", "predict"}) {
      CAPTURE(method);
      CAPTURE(kv);
      auto job = job_of(method, {.pp = 2, .ring = 2}, 12);
      job.request.kv = kv;
      const auto result =
          cluster.struck(job, 6, [&](std::uint64_t) { kill(cluster.pids().at(2), SIGKILL); });
      const auto refills = report_of(result)["request"]["refill_steps"];
      REQUIRE(refills.size() == 1);
      CHECK(refills[0] == report_of(result)["recoveries"][0]["step"]);
      auto again = job;
      again.request.refill_steps = refills.get<std::vector<int>>();
      check_recovered_same(cluster.run(again), result);
      // On other degrees, too.
      again.parallelism = {.cfg = 2};
      const auto elsewhere = cluster.run(again);
      double worst = 0;
      for (std::size_t i = 0; i < result.latents->data.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(result.latents->data[i]) -
                                         elsewhere.latents->data[i]));
      CHECK(worst < 1e-3);
    }
  }
}

TEST_CASE("kill -9 again and again, at random: the job comes to its end all the same") {
  auto options = actors(4);
  options.max_recoveries = 100;  // between two blows a busy machine may not make a step
  FaultCluster cluster(options);
  const auto job = job_of("exact", {.cfg = 2, .pp = 2}, 80);
  const auto undisturbed = cluster.run(job);
  std::mt19937 random(5);
  cluster.hold(0, {.step = 10});
  const auto id = cluster.submit(job);
  cluster.held(0);
  kill(cluster.pids().at(random() % 4), SIGKILL);
  // And at any moment, for as long as the job runs.
  const auto ended = [&] { return cluster.job(id)->state == JobState::succeeded; };
  int blows = 1;
  while (blows < 6 && !eventually(std::chrono::milliseconds(300 + random() % 700), ended)) {
    // Who has not come up yet would be given up after three such ends.
    const auto actor = random() % 4;
    const auto up = [&] {
      const auto state = cluster.status().actors.at(actor).state;
      return can_compute(state);
    };
    REQUIRE(eventually(kPatience, up));
    kill(cluster.pids().at(actor), SIGKILL);
    ++blows;
  }
  const auto result = cluster.client().wait(id, 600s);
  if (!result) FAIL(result.error().what);
  check_recovered_same(result.value(), undisturbed);
  CHECK_FALSE(report_of(result.value())["recoveries"].empty());
  MESSAGE(blows << " blows, " << report_of(result.value())["recoveries"].size() << " recoveries");
  CHECK(left_in_memory() == "");
}

TEST_CASE("jobs that share a deployment all outlive a loss") {
  FaultCluster cluster(actors(2));
  const auto job = [](int seed) {
    auto submission = job_of("exact", {.pp = 2}, 12);
    submission.request.seed = static_cast<std::uint64_t>(seed);
    return submission;
  };
  std::vector<JobResult> undisturbed;
  for (int seed = 0; seed < 3; ++seed)
    undisturbed.push_back(cluster.run(job(seed)));
  cluster.hold(1, {.step = 3});
  std::vector<std::uint64_t> ids;
  for (int seed = 0; seed < 3; ++seed)
    ids.push_back(cluster.submit(job(seed)));
  cluster.held(1);
  for (const auto id : ids)
    REQUIRE(eventually(kPatience, [&] { return cluster.job(id)->state == JobState::running; }));
  kill(cluster.pids().at(1), SIGKILL);
  for (int seed = 0; seed < 3; ++seed) {
    const auto result = cluster.client().wait(ids[seed], 600s);
    if (!result) FAIL(result.error().what);
    check_recovered_same(result.value(), undisturbed[seed]);
  }
}

TEST_CASE("a spare actor takes a lost one's place at once") {
  FaultCluster cluster(actors(3));
  const auto job = job_of("exact", {.pp = 2}, 12);
  const auto undisturbed = cluster.run(job);
  const auto result =
      cluster.struck(job, 4, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
  check_recovered_same(result, undisturbed);
  CHECK(report_of(result)["actors"][1]["actor"] == 2);
}

TEST_CASE("a stopped actor is replaced once it is known to hang") {
  FaultCluster cluster(actors(2));
  const auto job = job_of("exact", {.pp = 2}, 12);
  const auto undisturbed = cluster.run(job);
  const auto result =
      cluster.struck(job, 4, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGSTOP); });
  check_recovered_same(result, undisturbed);
  CHECK(has(report_of(result)["recoveries"][0]["cause"], "no sign of life"));
}

TEST_CASE("a job that is cancelled while it waits for a place ends cancelled") {
  FaultCluster cluster(actors(2));
  cluster.hold(0, {.step = 2});
  const auto id = cluster.submit(job_of("exact", {.pp = 2}, 12));
  cluster.held(0);
  cluster.hold(0, {.step = 4});  // the job does not end, should it find its place before the cancel
  kill(cluster.pids().at(1), SIGKILL);
  REQUIRE(cluster.client().cancel(id));
  const auto result = cluster.client().wait(id, kPatience);
  REQUIRE(!result);
  CHECK(cluster.job(id)->state == JobState::cancelled);
  REQUIRE(cluster.whole());
  cluster.release(0);
  cluster.run(job_of("exact", {.pp = 2}, 2));
}
