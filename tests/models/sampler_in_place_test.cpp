#include <ATen/ATen.h>

#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

spec::SchedulerSpec scheduler_of(const std::string& name, const std::string& config) {
  return {name, config, "scheduler_config.json"};
}

}  // namespace

TEST_CASE("whoever writes a step's result over its sample gets what the others get") {
  const std::string flow = R"({"prediction_type": "flow_prediction", "use_flow_sigmas": true})";
  const std::vector<spec::SchedulerSpec> all = {
      scheduler_of("DDIMScheduler", "{}"),
      scheduler_of("DDPMScheduler", "{}"),
      scheduler_of("EulerDiscreteScheduler", "{}"),
      scheduler_of("EulerAncestralDiscreteScheduler", "{}"),
      scheduler_of("DPMSolverMultistepScheduler", R"({"solver_order": 3})"),
      scheduler_of("DPMSolverMultistepScheduler", flow),
      scheduler_of("UniPCMultistepScheduler", "{}"),
      scheduler_of("UniPCMultistepScheduler", flow),
      scheduler_of("FlowMatchEulerDiscreteScheduler", "{}"),
      scheduler_of("LCMScheduler", "{}"),
      scheduler_of("PNDMScheduler", R"({"skip_prk_steps": true})"),
      scheduler_of("PNDMScheduler", "{}")};
  for (const auto& spec : all) {
    CAPTURE(spec.class_name + " " + spec.config);
    const auto sampler = models::make_sampler(spec, "", {.num_steps = 5, .image_tokens = 16});
    models::SamplerState state, state_in_place;
    at::Tensor sample = at::randn({1, 2, 4, 4});
    at::Tensor in_place = sample.clone();
    for (int i = 0; i < sampler->steps(); ++i) {
      const at::Tensor output = at::randn_like(sample), noise = at::randn_like(sample);
      sample = sampler->step(state, i, output, sample, noise);
      in_place.copy_(sampler->step(state_in_place, i, output, in_place, noise));
      CHECK(at::equal(sample, in_place));
    }
  }
}
