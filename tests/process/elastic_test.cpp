#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/process/support/compare.h"
#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// Returns options of actors that are not started again.
cluster::ClusterOptions mortals(int count) {
  auto options = actors(count);
  options.max_respawns = 0;
  return options;
}

Submission elastic_job(const std::string& method, const Parallelism& degrees) {
  auto submission = demo_job(12);
  submission.request.method = method;
  if (method == "exact") submission.request.num_pipeline_patch = 1;
  submission.parallelism = degrees;
  submission.elastic = true;
  return submission;
}

/// Lets the job run for so many micro-steps, kills actors, and lets it go on to its end.
JobResult bereaved(FaultCluster& cluster, const Submission& submission, int micro_steps,
                   const std::vector<std::size_t>& victims) {
  auto inspector = take(Inspector::connect(cluster.cluster().endpoint(), kPatience), "inspect");
  const auto pids = cluster.pids();
  cluster.hold(0, {"beginning"});  // so that it is paused before it gets anywhere
  const auto id = cluster.submit(submission);
  cluster.held(0);
  take(inspector.control(id, JobAction::pause), "pause");
  cluster.release(0);
  // The text is a task as well.
  for (int done = 0; done <= micro_steps; ++done) {
    REQUIRE(eventually(kPatience, [&] { return bool(inspector.control(id, JobAction::step)); }));
    REQUIRE(eventually(kPatience, [&] {
      const auto status = cluster.status();
      return std::none_of(status.actors.begin(), status.actors.end(),
                          [](const auto& actor) { return actor.state == ActorState::busy; });
    }));
  }
  for (const auto victim : victims)
    kill(pids.at(victim), SIGKILL);
  REQUIRE(eventually(kPatience, [&] {
    std::size_t dead = 0;
    for (const auto& actor : cluster.status().actors)
      dead += actor.state == ActorState::dead ? 1 : 0;
    return dead >= victims.size();
  }));
  take(inspector.control(id, JobAction::resume), "resume");
  return take(cluster.client().wait(id, 600s), "wait");
}

nlohmann::json elastic_report(const JobResult& result) {
  return nlohmann::json::parse(result.report);
}

int world(const nlohmann::json& part) {
  int product = 1;
  for (const auto& [axis, degree] : part["degrees"].items())
    product *= degree.get<int>();
  return product;
}

}  // namespace

TEST_CASE("an elastic exact job ends on the survivors, whoever they are") {
  std::optional<JobResult> first;
  for (const std::size_t victim : {3, 0}) {
    FaultCluster cluster(mortals(4));
    const auto job = elastic_job("exact", {.cfg = 2, .pp = 2});
    const auto undisturbed = cluster.run(job);
    const auto result = bereaved(cluster, job, 10, {victim});
    const auto report = elastic_report(result);
    const auto parts = report["parts"];
    REQUIRE(parts.size() == 2);
    CHECK(world(parts[0]) == 4);
    CHECK(world(parts[1]) <= 3);
    CHECK(parts[1]["first_step"] >= 2);
    CHECK(parts[1]["first_step"] <= 8);
    CHECK(has(report["recoveries"][0]["cause"], "signal 9"));
    const double error = range_error(*result.latents, *undisturbed.latents);
    CHECK(error < 1e-4);
    MESSAGE("from step " << parts[1]["first_step"] << " on " << world(parts[1])
                         << " actors: " << error << " of range from an undisturbed run");
    // The same mesh; where it came from the same step on, the same bits.
    if (first) {
      const auto others = elastic_report(*first)["parts"];
      CHECK(others[1]["degrees"] == parts[1]["degrees"]);
      if (others == parts) CHECK(first->latents->data == result.latents->data);
    } else {
      first = result;
    }
  }
}

TEST_CASE("an elastic stale job says what it filled anew, and can be made again on any mesh") {
  FaultCluster cluster(mortals(4));
  const auto job = elastic_job("pipefusion", {.pp = 4});
  const auto result = bereaved(cluster, job, 60, {1, 2});
  const auto report = elastic_report(result);
  REQUIRE(report["parts"].size() >= 2);
  CHECK(world(report["parts"].back()) <= 2);
  const auto refills = report["request"]["refill_steps"];
  REQUIRE(!refills.empty());
  auto again = job;
  again.parallelism = {};
  again.request.refill_steps = refills.get<std::vector<int>>();
  CHECK(range_error(*result.latents, *cluster.run(again).latents) < 1e-4);
}

TEST_CASE("down to the last actor; without --elastic the job fails with the cause") {
  FaultCluster cluster(mortals(3));
  const auto job = elastic_job("exact", {.pp = 3});
  const auto undisturbed = cluster.run(job);
  const auto result = bereaved(cluster, job, 9, {0, 1});
  CHECK(range_error(*result.latents, *undisturbed.latents) < 1e-4);
  CHECK(world(elastic_report(result)["parts"].back()) == 1);

  FaultCluster rigid(mortals(2));
  auto other = elastic_job("exact", {.pp = 2});
  other.elastic = false;
  rigid.hold(0, {.step = 2});
  const auto id = rigid.submit(other);
  rigid.held(0);
  kill(rigid.pids().at(1), SIGKILL);
  const auto fall = rigid.client().wait(id, kPatience);
  REQUIRE(!fall);
  CHECK(has(fall.error().what, "signal 9"));
  CHECK(has(fall.error().what, "stays empty"));
}
