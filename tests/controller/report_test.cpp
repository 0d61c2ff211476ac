#include "controller/jobs/report.h"

#include <nlohmann/json.hpp>

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;

TEST_CASE("a prompt that is no UTF-8 costs its letters, not the report") {
  jobs::JobEntry job;
  wire::ImageRequest request;
  request.prompts = {"x"};
  job.plan = plan::make_plan(test::sample_model(), request, {});
  job.plan.request.prompts = {"caf\xe9 noir"};
  const auto text = jobs::make_report(job, {}, {}, {}, 0, {"\xff"});
  const auto report = nlohmann::json::parse(text);
  CHECK(report["request"]["prompts"][0] == "caf\xef\xbf\xbd noir");
  CHECK(report["warnings"][0] == "\xef\xbf\xbd");
}

TEST_CASE("a report has every setting of its request, seed and K,V mode included") {
  jobs::JobEntry job;
  wire::ImageRequest request;
  request.prompts = {"x", "y"};
  request.images_per_prompt = 3;
  request.seed = 7;
  request.method = "pipefusion";
  request.num_pipeline_patch = 2;
  job.plan = plan::make_plan(test::sample_model(), request, {});
  job.plan.request.kv = "predict";
  const auto report = nlohmann::json::parse(jobs::make_report(job, {}, {}, {}, 0, {}));
  const auto& said = report["request"];
  CHECK(said["kv"] == "predict");
  CHECK(said["seed"] == 7);
  CHECK(said["patches"] == 2);
  CHECK(said["prompts"].size() == 2);
  CHECK(said["images_per_prompt"] == 3);
  CHECK(said["init_latents"] == false);
  CHECK(said["height"] == 256);
}
