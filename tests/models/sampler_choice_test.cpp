#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/models/sampler_support.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// Which samplers and settings may be asked for, and what is said of the others.

using nlohmann::json;
using troupe::models::make_sampler;
using troupe::spec::SchedulerSpec;
using troupe::testing::message_of;
using namespace troupe::models::testing;

TEST_CASE("a schedule that shifts with the picture's size needs it") {
  const SchedulerSpec spec =
      scheduler("FlowMatchEulerDiscreteScheduler", {{"use_dynamic_shifting", true}});
  CHECK(message_of([&] { make_sampler(spec, "", 4); }).find("use_dynamic_shifting") !=
        std::string::npos);
  const auto small = make_sampler(spec, "", {.num_steps = 4, .image_tokens = 256});
  const auto large = make_sampler(spec, "", {.num_steps = 4, .image_tokens = 4096});
  CHECK(small->timestep(2) < large->timestep(2));
  // A distilled model's own shift stands for that of every size.
  const auto fixed = [&](int tokens) {
    return make_sampler(spec, "", {.num_steps = 4, .image_tokens = tokens, .fixed_shift = 1.15});
  };
  CHECK(fixed(256)->timestep(2) == fixed(4096)->timestep(2));
}

TEST_CASE("what is not supported is refused by key and value") {
  const auto refusal = [](const std::string& name, const json& config, const std::string& as = "") {
    return message_of([&] { make_sampler(scheduler(name, config), as, 10); });
  };
  const std::string dpm = "DPMSolverMultistepScheduler";
  const std::string euler = "EulerDiscreteScheduler";
  const std::vector<std::tuple<std::string, std::string, json>> bad = {
      {dpm, "algorithm_type", "sde-dpmsolver"},
      {dpm, "solver_order", 4},
      {dpm, "solver_type", "rk4"},
      {dpm, "prediction_type", "flow_prediction"},
      {dpm, "beta_schedule", "sigmoid"},
      {dpm, "beta_start", -1.0},
      {dpm, "beta_end", "a lot"},
      {dpm, "timestep_spacing", "dense"},
      {dpm, "final_sigmas_type", "one"},
      {dpm, "use_flow_sigmas", true},
      {dpm, "use_dynamic_shifting", true},
      {dpm, "use_karras_sigmas", 1},
      {dpm, "variance_type", "guessed"},
      {dpm, "num_train_timesteps", 0},
      {dpm, "num_train_timesteps", 10001},
      {"FlowMatchEulerDiscreteScheduler", "num_train_timesteps", 10001},
      {dpm, "trained_betas", {0.1, 0.2}},
      {dpm, "a_key_of_the_future", 3},
      {euler, "interpolation_type", "cubic"},
      {euler, "sigma_min", -0.5},
      {euler, "timestep_type", "odd"},
      {"FlowMatchEulerDiscreteScheduler", "invert_sigmas", true},
      {"FlowMatchEulerDiscreteScheduler", "shift", 0.0},
      {"FlowMatchEulerDiscreteScheduler", "time_shift_type", "cubic"},
      {"FlowMatchEulerDiscreteScheduler", "max_image_seq_len", 256},
      {"FlowMatchEulerDiscreteScheduler", "shift_terminal", 1.5},
      {"DDPMScheduler", "variance_type", "learned"},
      {"DDPMScheduler", "variance_type", "learned_range"},
      {"DDPMScheduler", "prediction_type", "flow_prediction"},
      {"EulerAncestralDiscreteScheduler", "prediction_type", "sample"},
      {"LCMScheduler", "original_inference_steps", 2000},
      {"PNDMScheduler", "prediction_type", "sample"},
      {"PNDMScheduler", "prediction_type", "flow_prediction"},
      {"PNDMScheduler", "skip_prk_steps", 1},
      {"PNDMScheduler", "timestep_spacing", "dense"},
      {"UniPCMultistepScheduler", "solver_p", {{"a", 1}}},
      {"UniPCMultistepScheduler", "solver_type", "bh3"},
      {"UniPCMultistepScheduler", "solver_order", 4},
      {"UniPCMultistepScheduler", "use_dynamic_shifting", true},
      {"UniPCMultistepScheduler", "shift_terminal", 0.1},
      {"DDIMScheduler", "clip_sample", "yes"},
      {"DDIMScheduler", "dynamic_thresholding_ratio", 2.0},
  };
  for (const auto& [name, key, value] : bad) {
    const std::string text = refusal(name, {{key, value}});
    CAPTURE(key);
    CAPTURE(text);
    const bool named = text.find(key) != std::string::npos || key == "trained_betas";
    CHECK(named);
    CHECK(text.find("scheduler_config.json") != std::string::npos);
  }
  CHECK(refusal(dpm, {{"algorithm_type", "dpmsolver"}}).find("final_sigmas_type") !=
        std::string::npos);
  CHECK(refusal("HeunDiscreteScheduler", json::object()).find("HeunDiscreteScheduler") !=
        std::string::npos);
  CHECK(refusal(dpm, json::object(), "heun").find("\"heun\"") != std::string::npos);
  CHECK_THROWS_AS(make_sampler(scheduler(dpm, json::object()), "", 0), std::invalid_argument);
  CHECK_THROWS_AS(make_sampler(scheduler(dpm, json::object()), "", 1001), std::invalid_argument);
  CHECK_THROWS_AS(make_sampler({dpm, "{", "x.json"}, "", 4), std::runtime_error);
  CHECK_THROWS_AS(make_sampler({dpm, "[1]", "x.json"}, "", 4), std::runtime_error);
}

TEST_CASE("another sampler takes over the keys that it knows") {
  // What a published Stable Diffusion folder holds: keys of several classes, private ones,
  // infinities.
  const SchedulerSpec spec{"PNDMScheduler",
                           R"({"_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0",
                               "beta_end": 0.012, "beta_schedule": "scaled_linear",
                               "beta_start": 0.00085, "num_train_timesteps": 1000,
                               "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
                               "lambda_min_clipped": -Infinity, "trained_betas": null,
                               "clip_sample": false})",
                           "scheduler_config.json"};
  const auto ddim = make_sampler(spec, "ddim", 10);
  CHECK(ddim->timestep(0) == 901);  // leading is DDIM's default, the offset is the file's
  CHECK(ddim->timestep(9) == 1);
  const auto euler = make_sampler(spec, "EulerDiscreteScheduler", 10);
  CHECK(euler->timestep(0) == 999);  // linspace is Euler's
  CHECK(euler->init_noise_sigma() == doctest::Approx(14.6146).epsilon(1e-4));
  CHECK(make_sampler(spec, "dpmsolver++", 10)->timestep(0) == 999);
  for (const std::string& name : troupe::spec::sampler_names()) {
    CHECK(make_sampler(spec, name, 5)->steps() == (name == "pndm" ? 6 : 5));
    CHECK(troupe::spec::sampler_name(spec, name) == name);
  }
  CHECK(make_sampler(spec, "sde-dpmsolver++", 5)->noise_needed(0));
  CHECK_FALSE(make_sampler(spec, "dpmsolver++", 5)->noise_needed(0));
}

TEST_CASE("a sampler that does not go with what the model predicts is refused") {
  const auto refusal = [](const char* own, json config, const std::string& name) {
    return message_of(
        [&] { troupe::spec::check_sampler_fits(scheduler(own, std::move(config)), name); });
  };
  const char* flow = "FlowMatchEulerDiscreteScheduler";
  const std::string ddim = refusal(flow, json::object(), "ddim");
  CHECK(ddim.find("\"ddim\"") != std::string::npos);
  CHECK(ddim.find("choose flow-euler") != std::string::npos);
  for (const std::string name : {"unipc", "dpmsolver++", "sde-dpmsolver++", "euler"}) {
    // What FLUX.1-dev's folder has; of the samplers with flows of their own, none knows the key.
    const std::string dev = refusal(flow, {{"use_dynamic_shifting", true}}, name);
    CHECK(dev.starts_with("[sampler] sampler is \"" + name + "\""));
    CHECK(dev.find("choose flow-euler") != std::string::npos);
    CHECK(dev.find("use_dynamic_shifting") == std::string::npos);
  }
  const std::string taken = refusal("DDIMScheduler", {{"use_dynamic_shifting", true}}, "unipc");
  CHECK(taken.starts_with("[sampler] sampler is \"unipc\""));
  CHECK(taken.find("key \"use_dynamic_shifting\"") != std::string::npos);
  const std::string own =
      refusal("UniPCMultistepScheduler", {{"use_dynamic_shifting", true}}, "unipc");
  CHECK(own.starts_with("[read_config]"));
  const std::string euler = refusal("EulerDiscreteScheduler", json::object(), "flow-euler");
  CHECK(euler.find("predicts noise") != std::string::npos);
  CHECK(refusal(flow, json::object(), "").empty());
  CHECK(refusal("PNDMScheduler", json::object(), "unipc").empty());
  CHECK(refusal("UniPCMultistepScheduler",
                {{"use_flow_sigmas", true}, {"prediction_type", "flow_prediction"}}, "dpmsolver++")
            .empty());
}
