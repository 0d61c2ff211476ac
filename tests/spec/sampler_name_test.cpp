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

TEST_CASE("numbers of steps that a sampler cannot make are refused, as diffusers fails at them") {
  const auto refusal = [](SamplerKind kind, const char* spacing, int offset, int steps,
                          const SamplerSettings& settings = {}) -> std::string {
    const auto config = parse_scheduler_config(
        std::string(R"({"skip_prk_steps": true, "timestep_spacing": ")") + spacing +
            R"(", "steps_offset": )" + std::to_string(offset) + "}",
        "scheduler_config.json", kind);
    try {
      check_steps(config, steps, settings);
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  };
  for (const auto kind : {SamplerKind::kDdim, SamplerKind::kDdpm, SamplerKind::kPndm}) {
    CHECK(refusal(kind, "leading", 1, 1000) ==
          "[sampler] steps is 1000: with steps_offset = 1 in scheduler_config.json they begin at "
          "time 1000, and the model was trained with times below 1000: ask for fewer");
    CHECK(refusal(kind, "leading", 0, 1000) == "");
    CHECK(refusal(kind, "leading", 1, 999) == "");
    CHECK(refusal(kind, "trailing", 1, 1000) == "");
    CHECK(refusal(kind, "linspace", 1, 1000) == "");
  }
  for (const auto kind : {SamplerKind::kDpmSolverMultistep, SamplerKind::kUniPc}) {
    CHECK(refusal(kind, "linspace", 0, 1000).find("999 are the most") != std::string::npos);
    CHECK(refusal(kind, "leading", 0, 999) == "");
    CHECK(refusal(kind, "trailing", 0, 1000) == "");
    CHECK(refusal(kind, "linspace", 0, 1000, {.timesteps = {9, 5}}) == "");
  }
  CHECK(refusal(SamplerKind::kEulerDiscrete, "leading", 1, 1000) == "");
  CHECK(refusal(SamplerKind::kLcm, "leading", 0, 51).find("is 50") != std::string::npos);
  CHECK(refusal(SamplerKind::kLcm, "leading", 0, 50) == "");
  CHECK(refusal(SamplerKind::kEulerDiscrete, "leading", 0, 1001) ==
        "[sampler] steps is 1001: the model was trained with 1000 timesteps");
}
