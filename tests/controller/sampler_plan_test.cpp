#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <tuple>

#include "controller/plan/plan.h"
#include "models/samplers/timestep_spacing.h"
#include "models/spec/model_spec.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// What diffusers' schedulers crash at, or turn into NaN, is refused before anybody computes.

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;
using wire::JobField;

namespace {

spec::ModelSpec model_with(const std::string& class_name, const json& config) {
  auto model = test::sample_model();
  model.scheduler = {class_name, config.dump(), "scheduler_config.json"};
  return model;
}

wire::ImageRequest request_of(int steps) {
  wire::ImageRequest request;
  request.prompts = {"a cat"};
  request.steps = steps;
  return request;
}

/// Calls of the model that are planned for so many steps.
int calls(const std::string& class_name, const json& config, int steps) {
  return plan::make_plan(model_with(class_name, config), request_of(steps), {}).request.steps;
}

struct Refused {
  std::string why;
  JobField field = JobField::none;
};

Refused refusal(const spec::ModelSpec& model, const wire::ImageRequest& request) {
  try {
    plan::make_plan(model, request, {});
  } catch (const std::invalid_argument& error) {
    return {error.what(), wire::field_of(error)};
  }
  return {};
}

}  // namespace

TEST_CASE("steps whose numbers are not finite are refused by time, file and remedy") {
  const std::string dpm = "DPMSolverMultistepScheduler", unipc = "UniPCMultistepScheduler",
                    ddim = "DDIMScheduler", ddpm = "DDPMScheduler", lcm = "LCMScheduler",
                    euler = "EulerDiscreteScheduler", pndm = "PNDMScheduler",
                    ancestral = "EulerAncestralDiscreteScheduler",
                    flow = "FlowMatchEulerDiscreteScheduler";
  struct Case {
    std::string class_name;
    json config;
    int steps;
    int call;
  };
  const json no_signal = {
      {"rescale_betas_zero_snr", true}, {"timestep_spacing", "trailing"}, {"clip_sample", false}};
  const json no_noise = {{"beta_start", 0.0}, {"timestep_spacing", "linspace"}};
  const Case kRefused[] = {
      {unipc, {{"predict_x0", false}}, 8, 8},
      {unipc, {{"solver_order", 2}, {"lower_order_final", false}}, 8, 8},
      {unipc, {{"solver_order", 3}, {"lower_order_final", false}}, 8, 8},
      {dpm,
       {{"use_karras_sigmas", true}, {"final_sigmas_type", "sigma_min"}, {"solver_type", "heun"}},
       20,
       20},
      {dpm, {{"timestep_spacing", "leading"}, {"steps_offset", 1}}, 999, 2},
      {ddim, no_signal, 8, 1},
      {ddpm, no_signal, 8, 1},
      {lcm, no_signal, 8, 1},
      {ddpm, no_noise, 8, 8},
      {euler, no_noise, 8, 8},
      {ancestral, no_noise, 8, 8},
      {pndm, {{"beta_start", 0.0}, {"set_alpha_to_one", true}, {"skip_prk_steps", true}}, 8, 9},
  };
  for (const auto& [class_name, config, steps, call] : kRefused) {
    CAPTURE(class_name);
    CAPTURE(config.dump());
    const auto refused = refusal(model_with(class_name, config), request_of(steps));
    CHECK(refused.why == "[sampler] steps is " + std::to_string(steps) +
                             ": with the settings in scheduler_config.json call " +
                             std::to_string(call) +
                             " of the model leads to no finite value: ask for another number of "
                             "steps, or choose another sampler");
    CHECK(refused.field == JobField::steps);
  }
  // The same settings but for what makes them impossible.
  CHECK(calls(unipc, {{"predict_x0", false}, {"final_sigmas_type", "sigma_min"}}, 8) == 8);
  CHECK(calls(unipc, json::object(), 8) == 8);
  CHECK(calls(dpm, {{"timestep_spacing", "leading"}, {"steps_offset", 1}}, 400) == 400);
  for (const auto& sampler : {ddim, ddpm, lcm}) {
    auto settings = no_signal;
    settings["prediction_type"] = "v_prediction";
    CHECK(calls(sampler, settings, 8) == 8);
    settings = no_signal;
    settings["clip_sample"] = true;
    CHECK(calls(sampler, settings, 8) == 8);
  }
  auto shifted = model_with(flow, {{"shift_terminal", 0.1}});
  shifted.even_sigmas = true;
  CHECK(has(refusal(shifted, request_of(1)).why, "the only noise level is 1, and shift_terminal"));
  CHECK(refusal(shifted, request_of(2)).why == "");
}

TEST_CASE("FLUX.2's noise levels are shifted by size and steps as its pipelines shift them") {
  spec::SchedulerConfig config;
  config.use_dynamic_shifting = true;
  // compute_empirical_mu of diffusers' pipeline_flux2_klein.
  for (const auto& [tokens, steps, mu] : {std::tuple{16, 6, 1.9300547188223665},
                                          {4096, 4, 2.291179894115571},
                                          {4300, 50, 2.0446937905157894},
                                          {4301, 50, 1.18469693},
                                          {16384, 4, 3.22998634}}) {
    CAPTURE(tokens);
    const models::SamplerRun run{
        .num_steps = steps, .image_tokens = tokens, .shifts_by_steps = true};
    CHECK(models::dynamic_shift(config, run) == doctest::Approx(mu).epsilon(1e-12));
  }
  CHECK_THROWS_AS(models::dynamic_shift(config, {.num_steps = 4, .shifts_by_steps = true}),
                  std::invalid_argument);
}

TEST_CASE("steps that an initial picture leaves out need no finite value") {
  auto model = spec::read_model_spec(TROUPE_SOURCE_DIR "/tests/fixtures/tiny-sd15");
  model.scheduler.config = R"({"rescale_betas_zero_snr": true, "timestep_spacing": "trailing",
                               "clip_sample": false, "prediction_type": "epsilon"})";
  model.scheduler.mends_old_settings = false;
  auto request = request_of(8);
  CHECK(has(refusal(model, request).why, "call 1 of the model"));
  request.init_image_bytes = 100;
  request.strength = 0.5;
  CHECK(refusal(model, request).why == "");
}

TEST_CASE("times that the model was not trained with are refused, given ones by their field") {
  // arange ends one late: diffusers visits time -1, which is its noisiest.
  for (const std::string sampler : {"DDIMScheduler", "EulerDiscreteScheduler"}) {
    const auto model = model_with(sampler, {{"timestep_spacing", "trailing"}});
    CHECK(has(refusal(model, request_of(61)).why,
              "steps is 61: with timestep_spacing = trailing in scheduler_config.json they end at "
              "time -1"));
    CHECK(refusal(model, request_of(60)).why == "");
  }
  const auto pndm = model_with("PNDMScheduler", {{"skip_prk_steps", true}, {"steps_offset", 41}});
  CHECK(has(refusal(pndm, request_of(25)).why, "ask for"));
  CHECK(refusal(pndm, request_of(24)).why == "");
  const auto euler = model_with("EulerDiscreteScheduler", {{"beta_start", 0.0}});
  auto request = request_of(0);
  request.timesteps = {900, 400, 0};
  const auto refused = refusal(euler, request);
  CHECK(has(refused.why, "call 3 of the model"));
  CHECK(refused.field == JobField::timesteps);
  request.timesteps.back() = 1;
  CHECK(refusal(euler, request).why == "");
}

TEST_CASE("clipped lambdas leave fewer calls than steps, as in diffusers") {
  const json clipped = {{"beta_schedule", "squaredcos_cap_v2"},
                        {"timestep_spacing", "trailing"},
                        {"lambda_min_clipped", -5.1}};
  CHECK(calls("DPMSolverMultistepScheduler", clipped, 20) == 20);
  CHECK(calls("DPMSolverMultistepScheduler", clipped, 300) == 299);
  CHECK(calls("DPMSolverMultistepScheduler", clipped, 500) == 498);
}

TEST_CASE("a variance that no pipeline hands to DDPM is refused by its key") {
  const auto model = model_with("DDPMScheduler", {{"variance_type", "learned_range"}});
  CHECK(has(message_of([&] { plan::make_plan(model, request_of(8), {}); }),
            "scheduler_config.json: key \"variance_type\" = \"learned_range\" needs a model that "
            "hands its variance to the sampler"));
}
