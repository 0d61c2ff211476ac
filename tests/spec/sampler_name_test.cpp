#include "models/spec/model_spec.h"
#include "models/spec/sampler_alias.h"
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

TEST_CASE("a sampler's name may end with its noise levels, which then go before the checkpoint's") {
  const SchedulerSpec spec{"EulerDiscreteScheduler", R"({"use_exponential_sigmas": true})",
                           "scheduler_config.json"};
  const std::pair<const char*, SigmaSpacing> kLevels[] = {
      {"-karras", SigmaSpacing::kKarras},
      {"-exponential", SigmaSpacing::kExponential},
      {"-beta", SigmaSpacing::kBeta}};
  for (const auto& [suffix, spacing] : kLevels) {
    for (const std::string sampler : {"euler", "dpmsolver++", "sde-dpmsolver++", "unipc"}) {
      CAPTURE(sampler);
      CHECK(scheduler_config_for(spec, sampler + suffix).sigma_spacing == spacing);
      CHECK(scheduler_config_for(spec, sampler).sigma_spacing == SigmaSpacing::kExponential);
      CHECK(sampler_name(spec, sampler + suffix) == sampler + suffix);
      CHECK(is_sampler_name(sampler + suffix));
    }
  }
  CHECK(scheduler_config_for(spec, "sde-dpmsolver++-karras").stochastic);
  for (const char* name :
       {"ddim-karras", "euler-ancestral-beta", "-karras", "karras", "heun-beta"}) {
    CAPTURE(name);
    CHECK_FALSE(is_sampler_name(name));
    CHECK_THROWS_AS(scheduler_config_for(spec, name), std::invalid_argument);
  }
  const SchedulerSpec flow{"FlowMatchEulerDiscreteScheduler", "{}", "scheduler_config.json"};
  CHECK_THROWS_AS(check_sampler_fits(flow, "euler-karras"), std::invalid_argument);
  CHECK(sampler_of_alias("DPM++ 2M Karras") == "dpmsolver++-karras");
  CHECK(sampler_of_alias("dpmpp_2m_sde_exponential") == "sde-dpmsolver++-exponential");
  CHECK(sampler_of_alias("Euler a Karras") == "Euler a Karras");
}
