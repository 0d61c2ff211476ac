#include "controller/jobs/report.h"

#include <nlohmann/json.hpp>
#include <string>

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;

namespace {

/// Checks that every key, at whatever depth, stands in the page's words for users.
void check_documented(const nlohmann::json& part, const std::string& page) {
  for (const auto& [key, value] : part.items()) {
    if (part.is_object()) {
      CAPTURE(key);
      const bool named =
          testing::has(page, "`" + key + "`") || testing::has(page, "`" + key + "[]`");
      CHECK(named);
    }
    if (value.is_structured()) check_documented(value, page);
  }
}

}  // namespace

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

TEST_CASE("a report's warnings are those of the plan, of actors, of the way, in this order") {
  jobs::JobEntry job;
  wire::ImageRequest request;
  request.prompts = {"x"};
  job.plan = plan::make_plan(test::sample_model(), request, {});
  job.plan.warnings = {"of the plan"};
  job.outcome.warnings = {"of an actor"};
  const auto report = nlohmann::json::parse(jobs::make_report(job, {}, {}, {}, 0, {"of the way"}));
  CHECK(report["warnings"] == nlohmann::json{"of the plan", "of an actor", "of the way"});
}

TEST_CASE("a report has every setting of its request, seed and K,V mode included") {
  jobs::JobEntry job;
  wire::ImageRequest request;
  request.prompts = {"x", "y"};
  request.images_per_prompt = 3;
  request.seed = 7;
  request.method = Method::pipefusion;
  request.num_pipeline_patch = 2;
  job.plan = plan::make_plan(test::sample_model(), request, {});
  job.plan.request.kv = KvUse::predict;
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

TEST_CASE("docs/json.md names every field of a report") {
  jobs::JobEntry job;
  wire::ImageRequest request;
  request.prompts = {"x", "y"};
  request.step_cache = StepCacheRule::first_block;
  request.loras = {{"/a", 0.5}};
  job.plan = plan::make_plan(test::sample_model(), request, {.dp = 2});
  job.id = 2;
  const std::vector<jobs::BatchMember> members{{.job = 2, .pictures = {0, 1}},
                                               {.job = 3, .pictures = {1, 2}}};
  job.batching.why_not = "alone";
  job.course.recoveries.push_back({.cause = "lost", .step = 1, .began = 1});
  job.course.parts.push_back({0, job.plan.degrees});
  cluster::Deployment deployment;
  deployment.actor_of_rank = {0, 1};
  std::vector<wire::ActorJobStats> stats(2);
  stats[0].graphs.asked = true;
  auto report =
      nlohmann::json::parse(jobs::make_report(job, deployment, {}, stats, 0, {}, members));
  CHECK(report["actors"].size() == 2);
  check_documented(report, testing::read_all(TROUPE_SOURCE_DIR "/docs/json.md"));
}
