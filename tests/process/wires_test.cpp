// A whole cluster over tcp whose second host is behind a wire that is slow, thin, cut, says things
// twice or breaks off. Control and blobs go over it; tensors between hosts do not.
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/process/support/compare.h"
#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/joined_host_process.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "tests/support/wire.h"
#include "transport/control/endpoint.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// A cluster of two actors here and two of the host "beta" behind a wire.
struct WiredCluster {
  explicit WiredCluster(std::chrono::milliseconds delay = 0ms, const std::string& wait = "60")
      : cluster(open_to_hosts(2)),
        wire(control::parse_endpoint(cluster.cluster().endpoint()).port, 2) {
    wire.delay(delay);
    beta.emplace(cluster, "beta", 2, std::vector<std::string>{"--wait", wait}, wire.endpoint());
    REQUIRE(beta->all(ActorState::ready, 2));
  }
  FaultCluster cluster;
  Wire wire;
  std::optional<JoinedHostProcess> beta;
};

/// Returns a job on all four actors.
Submission wide_job(int steps, bool elastic = false) {
  auto job = demo_job(steps);
  job.request.method = "exact";
  job.request.num_pipeline_patch = 1;
  job.elastic = elastic;
  return job;
}

nlohmann::json recoveries_of(const JobResult& result) {
  return nlohmann::json::parse(result.report).at("recoveries");
}

}  // namespace

TEST_CASE("a wire that is slow or thin costs time, and no actor") {
  WiredCluster wired(200ms);
  auto& cluster = wired.cluster;
  const auto slow = cluster.run(wide_job(8));
  wired.wire.delay(0ms);
  wired.wire.throttle(1'000'000);
  const auto thin = cluster.run(wide_job(8));
  wired.wire.throttle(0);
  const auto undisturbed = cluster.run(wide_job(8));
  CHECK(slow.latents->data == undisturbed.latents->data);
  CHECK(thin.latents->data == undisturbed.latents->data);
  for (const auto* result : {&slow, &thin})
    CHECK(recoveries_of(*result).empty());
  CHECK(cluster.restarts() == 0);
  CHECK(cluster.status().recent_failures.empty());
}

TEST_CASE("a wire that is cut, says things twice or breaks off costs no job") {
  WiredCluster wired;
  auto& cluster = wired.cluster;
  auto& wire = wired.wire;
  constexpr int kSteps = 30;
  const auto undisturbed = cluster.run(wide_job(kSteps));
  struct Blow {
    std::string what;
    std::function<void()> strike;
  };
  for (const Blow& blow : {Blow{"cut", [&] { wire.cut(); }},
                           Blow{"whole pieces twice", [&] { wire.replay(SIZE_MAX); }},
                           Blow{"seven bytes twice", [&] { wire.replay(7); }},
                           Blow{"breaks off within a frame", [&] { wire.truncate(); }}}) {
    CAPTURE(blow.what);
    cluster.hold(0, {.step = 8});
    const auto job = cluster.submit(wide_job(kSteps, /*elastic=*/true));
    cluster.held(0);
    const auto before = wire.struck();
    blow.strike();
    if (blow.what != "cut") CHECK(eventually(kPatience, [&] { return wire.struck() > before; }));
    cluster.release(0);
    const auto result = take(cluster.client().wait(job, 600s), blow.what);
    CHECK(range_error(*result.latents, *undisturbed.latents) < 1e-4);
    // By whoever saw it first: the controller, or an actor of that host.
    for (const auto& recovery : recoveries_of(result)) {
      const auto cause = recovery.at("cause").get<std::string>();
      INFO(cause);
      CHECK((has(cause, "beta") || cause.starts_with("actor 2 ") || cause.starts_with("actor 3 ")));
    }
    MESSAGE(blow.what << ": " << recoveries_of(result).dump());
    // Whoever was taken for lost is back.
    REQUIRE(wired.beta->all(ActorState::ready, 2));
  }
}

TEST_CASE("a wire that is cut for good: the job fails with the host's name, the host gives up") {
  WiredCluster wired(0ms, "1");
  wired.cluster.hold(0, {.step = 4});
  const auto job = wired.cluster.submit(wide_job(8));
  wired.cluster.held(0);
  const auto blow = std::chrono::steady_clock::now();
  wired.wire.cut(/*for_good=*/true);
  const auto fall = wired.cluster.fall_of(job, blow);
  REQUIRE(fall);
  INFO(fall->error.what);
  CHECK(has(fall->error.what, "beta"));
  CHECK(wired.beta->command().wait(kPatience) == 1);
  CHECK(has(wired.beta->command().err(), "the controller is lost"));
}
