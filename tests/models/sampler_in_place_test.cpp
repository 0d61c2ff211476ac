#include <ATen/ATen.h>

#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

spec::SchedulerSpec scheduler(const std::string& name, const std::string& config) {
  return {name, config, "scheduler_config.json"};
}

}  // namespace

TEST_CASE("whoever writes a step's result over its sample gets what the others get") {
  const std::string flow = R"({"prediction_type": "flow_prediction", "use_flow_sigmas": true})";
  const std::vector<spec::SchedulerSpec> all = {
      scheduler("DDIMScheduler", "{}"),
      scheduler("DDPMScheduler", "{}"),
      scheduler("EulerDiscreteScheduler", "{}"),
      scheduler("EulerAncestralDiscreteScheduler", "{}"),
      scheduler("DPMSolverMultistepScheduler", R"({"solver_order": 3})"),
      scheduler("DPMSolverMultistepScheduler", flow),
      scheduler("UniPCMultistepScheduler", "{}"),
      scheduler("UniPCMultistepScheduler", flow),
      scheduler("FlowMatchEulerDiscreteScheduler", "{}"),
      scheduler("LCMScheduler", "{}"),
      scheduler("PNDMScheduler", R"({"skip_prk_steps": true})"),
      scheduler("PNDMScheduler", "{}")};
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
