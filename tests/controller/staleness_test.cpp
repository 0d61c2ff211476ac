#include "controller/plan/staleness.h"

#include "controller/plan/report.h"
#include "tests/controller/planning.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using plan::make_plan;
using test::sample_model;
using test::square_request;

TEST_CASE("stale K,V are warned of where steps are few, by the method that uses them") {
  const auto warned = [](const wire::ImageRequest& request) {
    const auto warnings = make_plan(sample_model(), request, {}).warnings;
    return warnings.empty() ? std::string() : warnings.front();
  };
  for (const auto method : {Method::pipefusion, Method::distrifusion}) {
    auto request = square_request(method, 4, 1);
    CHECK(warned(request) == "");
    request.steps = 4;
    CHECK(testing::has(warned(request), to_string(method) + " by 4 patches in 4 steps"));
    CHECK(testing::has(warned(request), "dB from exact"));
    request.warmup_steps = 4;  // all of them
    CHECK(warned(request) == "");
    request.warmup_steps = 1;
    request.num_pipeline_patch = 1;
    CHECK(warned(request) == "");
  }
  auto naive = square_request(Method::distrifusion, 4);
  naive.steps = 4;
  naive.exchange = PatchExchange::naive;
  CHECK(warned(naive) == "");
  auto exact = square_request();
  exact.steps = 4;
  CHECK(warned(exact) == "");
}

TEST_CASE("more steps come nearer to the exact picture") {
  for (const auto method : {Method::pipefusion, Method::distrifusion}) {
    for (const auto kv : {KvUse::stale, KvUse::predict}) {
      double before = 0;
      for (const int steps : {1, 4, 5, 8, 12, 20, 30, 50, 100}) {
        auto request = square_request(method, 4, 1);
        request.steps = steps;
        request.kv = kv;
        request.warmup_steps = 0;
        const auto found = plan::measured_psnr(make_plan(sample_model(), request, {}));
        REQUIRE(found.has_value());
        CHECK(*found >= before);
        before = *found;
      }
    }
  }
}

TEST_CASE("beside degrees that were picked for stale K,V stands what exact would take") {
  const auto said = [](int steps, int actors) {
    wire::JobSpec job;
    job.request = square_request(Method::pipefusion, 4, 1);
    job.request.steps = steps;
    job.parallelism.automatic = true;
    const auto found = plan::explain(sample_model(), job, actors, plan::machine_of("a100-nvlink"));
    std::string all;
    for (const auto& warning : found.plan.warnings)
      all += warning + "\n";
    return all;
  };
  CHECK(testing::has(said(4, 4), "exact on "));
  CHECK(testing::has(said(4, 4), " is predicted to take "));
  // Nothing is gained where one actor does it all.
  CHECK(testing::has(said(20, 1), "exact on one actor"));
  CHECK(testing::has(said(20, 1), "stale K,V save nothing"));
}
