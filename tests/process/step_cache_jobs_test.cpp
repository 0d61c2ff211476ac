#include <signal.h>

#include <chrono>

#include "tests/process/support/cached.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

TEST_CASE("warm-up steps and steps that are filled anew are never left out") {
  Reference reference("families");
  auto submission = of_case(reference, "sigma_wide", "first-block", 10);
  auto& request = submission.request;
  request.steps = 8;
  CHECK(cached(shared_cluster().run(submission)).by_step ==
        std::vector<int>{0, 2, 2, 2, 2, 2, 2, 2});
  request.refill_steps = {3, 6};
  CHECK(cached(shared_cluster().run(submission)).by_step ==
        std::vector<int>{0, 2, 2, 0, 2, 2, 0, 2});
  request.method = "pipefusion";
  request.num_pipeline_patch = 4;
  request.warmup_steps = 2;
  const auto patched = cached(shared_cluster().run(submission));
  CHECK(patched.by_step == std::vector<int>{0, 0, 8, 0, 8, 8, 0, 8});
  CHECK(patched.calls == 2 * (4 + 4 * 4));
  request.warmup_steps = 0;
  CHECK(cached(shared_cluster().run(submission)).by_step ==
        std::vector<int>{0, 8, 8, 0, 8, 8, 0, 8});
  // TeaCache computes the last step, too.
  request = of_case(reference, "sigma_wide", "teacache", 10).request;
  request.steps = 5;
  CHECK(cached(shared_cluster().run(submission)).by_step == std::vector<int>{0, 2, 2, 2, 0});
}

TEST_CASE("in half precision a cache works at any degrees") {
  Reference reference("families");
  auto submission = of_case(reference, "flux_wide", "first-block", 10);
  submission.request.dtype = "bfloat16";
  submission.request.steps = 4;
  for (const auto& mix : {Parallelism{}, Parallelism{.pp = 2, .ring = 2}}) {
    submission.parallelism = mix;
    CHECK(cached(shared_cluster().run(submission)).by_step == std::vector<int>{0, 1, 1, 1});
  }
}

TEST_CASE("what step caches cannot be asked for is refused by name") {
  Reference reference("families");
  auto submission = of_case(reference, "sigma_wide", "second-block", 0.1);
  CHECK(has(shared_cluster().refusal(submission).what, "`step_cache` is \"second-block\""));
  for (const double threshold : {-0.1, 11.0}) {
    submission = of_case(reference, "sigma_wide", "first-block", threshold);
    CHECK(has(shared_cluster().refusal(submission).what, "`step_cache_threshold` is"));
  }
  submission = of_case(reference, "sigma_wide", "", 0.1);
  CHECK(has(shared_cluster().refusal(submission).what, "`step_cache_threshold` needs"));
  submission = of_case(reference, "sigma_wide", "", 0);
  submission.request.refill_steps = {2};
  CHECK(has(shared_cluster().refusal(submission).what, "`refill_steps` needs"));
}

TEST_CASE("kill -9: a job with a step cache says where it began anew, and can be made again") {
  FaultCluster cluster(actors(2));
  for (const std::string method : {"exact", "pipefusion"}) {
    CAPTURE(method);
    auto job = demo_job(14);
    job.request.method = method;
    if (method == "exact") job.request.num_pipeline_patch = 1;
    job.request.step_cache = "first-block";
    job.request.step_cache_threshold = 0.1;
    job.parallelism = {.pp = 2};
    const auto result =
        cluster.struck(job, 5, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
    const auto report = nlohmann::json::parse(result.report);
    REQUIRE(report["recoveries"].size() == 1);
    const auto refills = report["request"]["refill_steps"];
    REQUIRE(refills.size() == 1);
    CHECK(refills[0] == report["recoveries"][0]["step"]);
    auto again = job;
    again.request.refill_steps = refills.get<std::vector<int>>();
    const auto distance = [&] {
      return range_error(cluster.run(again).latents.value(), result.latents.value());
    };
    CHECK(distance() <= kCacheDegreesBound);
    again.parallelism = {};
    CHECK(distance() <= 1e-4);  // trained weights magnify more than random
  }
}
