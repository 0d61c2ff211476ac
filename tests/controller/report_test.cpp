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
