#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/support/doctest.h"

using namespace troupe::spec;

TEST_CASE("a sampler has the name that people call it by, also the checkpoint's own") {
  const SchedulerSpec dpm{"DPMSolverMultistepScheduler", "{}", "scheduler_config.json"};
  const SchedulerSpec older{"DPMSolverMultistepScheduler",
                            R"({"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"})",
                            "scheduler_config.json"};
  const SchedulerSpec euler{"EulerDiscreteScheduler", "{}", "scheduler_config.json"};
  CHECK(sampler_name(dpm, "") == "dpmsolver++");
  CHECK(sampler_name(older, "") == "dpmsolver");
  CHECK(sampler_name(older, "dpmsolver++") == "dpmsolver++");
  CHECK(sampler_name(euler, "") == "euler");
  CHECK(sampler_name(euler, "DDIMScheduler") == "ddim");
  for (const auto& name : sampler_names())
    CHECK(sampler_name(euler, name) == name);
  CHECK_THROWS_AS(sampler_name(euler, "heun"), std::invalid_argument);
}
