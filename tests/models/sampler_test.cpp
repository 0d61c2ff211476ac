#include "models/samplers/sampler.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/support/doctest.h"

namespace {

using nlohmann::json;
using troupe::models::make_sampler;
using troupe::models::Sampler;
using troupe::models::SamplerState;
using troupe::spec::SchedulerSpec;

const std::filesystem::path kExpected =
    std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/expected";

SchedulerSpec scheduler(const std::string& class_name, const json& config) {
  return {class_name, config.dump(), "scheduler_config.json"};
}

at::Tensor model(const Sampler& sampler, const at::Tensor& x, int i) {
  const double shift = 0.3 * std::cos(sampler.timestep(i) / 100);
  return at::tanh(0.7 * sampler.scale_model_input(x, i) + shift);
}

double largest(const at::Tensor& t) {
  return t.abs().max().item<double>();
}

std::string failure(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Settings that cover every solver, order and memory.
const std::vector<SchedulerSpec>& some_schedulers() {
  static const std::vector<SchedulerSpec> specs = [] {
    std::vector<SchedulerSpec> out;
    for (int order : {1, 2, 3}) {
      for (const char* type : {"midpoint", "heun"}) {
        out.push_back(scheduler("DPMSolverMultistepScheduler",
                                {{"solver_order", order}, {"solver_type", type}}));
        out.push_back(
            scheduler("DPMSolverMultistepScheduler", {{"solver_order", order},
                                                      {"solver_type", type},
                                                      {"algorithm_type", "dpmsolver"},
                                                      {"final_sigmas_type", "sigma_min"}}));
      }
    }
    out.push_back(scheduler("DPMSolverMultistepScheduler", {{"use_karras_sigmas", true}}));
    out.push_back(scheduler("DDIMScheduler", {{"clip_sample", false}}));
    out.push_back(scheduler("EulerDiscreteScheduler", {{"timestep_spacing", "leading"}}));
    for (int order : {1, 2, 3}) {
      out.push_back(scheduler("UniPCMultistepScheduler", {{"solver_order", order}}));
    }
    for (const bool skip : {true, false})
      out.push_back(scheduler("PNDMScheduler", {{"skip_prk_steps", skip}}));
    return out;
  }();
  return specs;
}

// Those that add noise, and flow matching.
const std::vector<SchedulerSpec>& other_schedulers() {
  static const std::vector<SchedulerSpec> specs = [] {
    std::vector<SchedulerSpec> out;
    for (int order : {1, 2, 3}) {
      out.push_back(scheduler("DPMSolverMultistepScheduler",
                              {{"solver_order", order}, {"algorithm_type", "sde-dpmsolver++"}}));
    }
    out.push_back(scheduler("DDPMScheduler", {{"clip_sample", false}}));
    out.push_back(scheduler("EulerAncestralDiscreteScheduler", json::object()));
    out.push_back(scheduler("LCMScheduler", json::object()));
    out.push_back(scheduler("FlowMatchEulerDiscreteScheduler", {{"shift", 3.0}}));
    out.push_back(scheduler("FlowMatchEulerDiscreteScheduler", {{"stochastic_sampling", true}}));
    out.push_back(scheduler(
        "UniPCMultistepScheduler",
        {{"use_flow_sigmas", true}, {"prediction_type", "flow_prediction"}, {"flow_shift", 3.0}}));
    return out;
  }();
  return specs;
}

}  // namespace

TEST_CASE("samplers follow diffusers' trajectories") {
  std::ifstream file(kExpected / "samplers.json");
  REQUIRE(file.good());
  const json book = json::parse(file);
  const auto tensors = troupe::models::load_safetensors(kExpected / "samplers.safetensors");
  const at::Tensor noise = tensors.at("noise");
  std::map<std::string, int> compared;
  double worst = 0;
  int refused = 0;
  for (const json& c : book["cases"]) {
    const std::string name = c["name"];
    CAPTURE(name);
    CAPTURE(c["config"].dump());
    const SchedulerSpec spec = scheduler(c["class"], c["config"]);
    const int steps = c["steps"];
    if (c.contains("refused") && spec.class_name == "PNDMScheduler") {
      CHECK_THROWS_AS(make_sampler(spec, "", steps), std::invalid_argument);
      ++refused;
    }
    if (c.contains("refused") || !c["finite"].get<bool>()) continue;
    troupe::models::SamplerRun run{.num_steps = steps};
    if (c.contains("run")) {
      run.image_tokens = c["run"].value("image_tokens", 0);
      run.even_sigmas = c["run"].value("even_sigmas", false);
      run.first = c["run"].value("first", 0);
    }
    const auto sampler = make_sampler(spec, "", run);
    REQUIRE(sampler->steps() == static_cast<int>(c["timesteps"].size()));
    CHECK(sampler->init_noise_sigma() ==
          doctest::Approx(c["init_noise_sigma"].get<double>()).epsilon(1e-7));
    for (int i = 0; i < sampler->steps(); ++i) {
      CHECK(sampler->timestep(i) == doctest::Approx(c["timesteps"][i].get<double>()).epsilon(1e-6));
    }
    const at::Tensor expected = tensors.at(name + ".trajectory");
    auto generator = at::detail::createCPUGenerator(0);
    REQUIRE(at::equal(at::randn({1, 4, 4, 4}, generator), noise));
    const bool learned =
        c["class"] == "DDPMScheduler" && c["config"].value("variance_type", "") == "learned_range";
    at::Tensor x = noise * sampler->init_noise_sigma();
    if (run.first > 0) x = sampler->add_noise(at::tanh(noise.flip(3)), noise, 0);
    CHECK(largest(x - expected[0]) < 2e-6);
    if (spec.class_name == "PNDMScheduler") {
      const auto config = troupe::spec::scheduler_config_for(spec, "");
      CHECK(sampler->steps() == troupe::spec::model_calls(config, steps) - run.first);
    }
    SamplerState state;
    for (int i = 0; i < sampler->steps(); ++i) {
      at::Tensor output = model(*sampler, x, i);
      if (learned) output = at::cat({output, at::tanh(0.5 * x)}, 1);
      at::Tensor drawn;
      if (sampler->noise_needed(i)) drawn = at::randn({1, 4, 4, 4}, generator);
      x = sampler->step(state, i, output, x, drawn);
      const at::Tensor wanted = expected[i + 1];
      const double error = largest(x - wanted) / largest(wanted);
      worst = std::max(worst, error);
      CAPTURE(i);
      CHECK(error < 2e-6);
    }
    ++compared[c["class"]];
  }
  for (const auto& [name, count] : compared) {
    MESSAGE(name << ": " << count << " trajectories");
    CHECK(count > 10);
  }
  CHECK(compared.size() == 9);
  CHECK(refused == 4);
  MESSAGE("largest relative difference " << worst);
}

TEST_CASE("patches stepped alone are the whole, bit for bit") {
  std::vector<SchedulerSpec> specs = some_schedulers();
  specs.insert(specs.end(), other_schedulers().begin(), other_schedulers().end());
  for (const SchedulerSpec& spec : specs) {
    CAPTURE(spec.class_name);
    CAPTURE(spec.config);
    const auto sampler = make_sampler(spec, "", 6);
    REQUIRE_FALSE(sampler->needs_whole_picture());
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor start = (at::randn({2, 4, 7, 5}) * sampler->init_noise_sigma()).to(dtype);
      at::Tensor whole = start;
      SamplerState whole_state;
      std::vector<at::Tensor> parts = {start.narrow(2, 0, 3), start.narrow(2, 3, 1),
                                       start.narrow(2, 4, 3)};
      std::vector<SamplerState> states(parts.size());
      for (int i = 0; i < sampler->steps(); ++i) {
        const at::Tensor output = at::tanh(0.7 * whole);
        const at::Tensor noise = sampler->noise_needed(i) ? at::randn({2, 4, 7, 5}) : at::Tensor();
        std::int64_t row = 0;
        for (size_t p = 0; p < parts.size(); ++p) {
          const std::int64_t rows = parts[p].size(2);
          // Through a copy, as a state that is kept elsewhere and comes back.
          SamplerState moved = states[p];
          parts[p] = sampler->step(moved, i, output.narrow(2, row, rows), parts[p],
                                   noise.defined() ? noise.narrow(2, row, rows) : noise);
          states[p] = moved;
          row += rows;
        }
        whole = sampler->step(whole_state, i, output, whole, noise);
        REQUIRE((whole.scalar_type() == dtype));
        REQUIRE(at::equal(whole, at::cat(parts, 2)));
      }
    }
  }
}

TEST_CASE("a model that knows the picture is brought to it") {
  const at::Tensor clean = at::tanh(at::randn({1, 4, 6, 6}));
  for (const SchedulerSpec& spec : some_schedulers()) {
    for (const char* type : {"sample", "epsilon", "v_prediction"}) {
      if (spec.class_name == "PNDMScheduler" && std::string(type) == "sample") continue;
      json config = json::parse(spec.config);
      config["prediction_type"] = type;
      CAPTURE(spec.class_name);
      CAPTURE(config.dump());
      const auto sampler = make_sampler(scheduler(spec.class_name, config), "", 20);
      at::Tensor x = at::randn({1, 4, 6, 6}) * sampler->init_noise_sigma();
      SamplerState state;
      for (int i = 0; i < sampler->steps(); ++i) {
        const at::Tensor seen = sampler->scale_model_input(x, i);
        // Signal and noise of the linear schedule at this time, worked out from scratch.
        double log_signal = 0;
        const double time = sampler->timestep(i);
        for (int t = 0; t <= static_cast<int>(time); ++t) {
          log_signal += std::log1p(-(1e-4 + (0.02 - 1e-4) * t / 999));
        }
        const double fraction = time - std::floor(time);
        log_signal += fraction * std::log1p(-(1e-4 + (0.02 - 1e-4) * (std::floor(time) + 1) / 999));
        const double a = std::exp(log_signal / 2);
        const double s = std::sqrt(1 - a * a);
        const at::Tensor noise = (seen - a * clean) / s;
        const at::Tensor output = std::string(type) == "sample"    ? clean
                                  : std::string(type) == "epsilon" ? noise
                                                                   : a * noise - s * clean;
        x = sampler->step(state, i, output, x);
      }
      CHECK(largest(x - clean) < 0.1);
    }
  }
}

TEST_CASE("noise that is missing or misshapen is refused") {
  const at::Tensor x = at::randn({1, 4, 3, 5});
  int needed = 0;
  for (const SchedulerSpec& spec : other_schedulers()) {
    const auto sampler = make_sampler(spec, "", 4);
    if (!sampler->noise_needed(0)) continue;
    CAPTURE(spec.class_name);
    SamplerState state;
    CHECK_THROWS_AS(sampler->step(state, 0, x, x), std::invalid_argument);
    CHECK_THROWS_AS(sampler->step(state, 0, x, x, x.narrow(2, 0, 2)), std::invalid_argument);
    ++needed;
  }
  CHECK(needed == 7);
  CHECK_FALSE(make_sampler(scheduler("LCMScheduler", json::object()), "", 4)->noise_needed(3));
}

TEST_CASE("Stable Diffusion 1.5's own scheduler visits the second time twice") {
  const auto sampler = make_sampler(
      scheduler("PNDMScheduler", {{"skip_prk_steps", true}, {"steps_offset", 1}}), "", 50);
  REQUIRE(sampler->steps() == 51);
  CHECK(sampler->timestep(0) == 981);
  CHECK(sampler->timestep(1) == 961);
  CHECK(sampler->timestep(2) == 961);
  CHECK(sampler->timestep(50) == 1);
  SamplerState state;
  const at::Tensor x = at::randn({1, 4, 3, 5});
  CHECK_THROWS_AS(sampler->step(state, 1, x, x), std::invalid_argument);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 6; ++i) {
    sampler->step(state, i, x, x);
    sizes.push_back(state.history.size());
  }
  CHECK(sizes == std::vector<std::size_t>{2, 1, 2, 3, 3, 3});
}

TEST_CASE("a schedule that shifts with the picture's size needs it") {
  const SchedulerSpec spec =
      scheduler("FlowMatchEulerDiscreteScheduler", {{"use_dynamic_shifting", true}});
  CHECK(failure([&] { make_sampler(spec, "", 4); }).find("use_dynamic_shifting") !=
        std::string::npos);
  const auto small = make_sampler(spec, "", {.num_steps = 4, .image_tokens = 256});
  const auto large = make_sampler(spec, "", {.num_steps = 4, .image_tokens = 4096});
  CHECK(small->timestep(2) < large->timestep(2));
}

TEST_CASE("what is not supported is refused by key and value") {
  const auto refusal = [](const std::string& name, const json& config, const std::string& as = "") {
    return failure([&] { make_sampler(scheduler(name, config), as, 10); });
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
    return failure(
        [&] { troupe::spec::check_sampler_fits(scheduler(own, std::move(config)), name); });
  };
  const char* flow = "FlowMatchEulerDiscreteScheduler";
  const std::string ddim = refusal(flow, json::object(), "ddim");
  CHECK(ddim.find("\"ddim\"") != std::string::npos);
  CHECK(ddim.find("choose flow-euler") != std::string::npos);
  const std::string euler = refusal("EulerDiscreteScheduler", json::object(), "flow-euler");
  CHECK(euler.find("predicts noise") != std::string::npos);
  CHECK(refusal(flow, json::object(), "").empty());
  CHECK(refusal("PNDMScheduler", json::object(), "unipc").empty());
  CHECK(refusal("UniPCMultistepScheduler",
                {{"use_flow_sigmas", true}, {"prediction_type", "flow_prediction"}}, "dpmsolver++")
            .empty());
}

TEST_CASE("thresholding needs the whole picture and is per picture") {
  const auto sampler = make_sampler(
      scheduler("DDIMScheduler", {{"thresholding", true}, {"sample_max_value", 2.0}}), "", 5);
  CHECK(sampler->needs_whole_picture());
  const at::Tensor x = at::randn({2, 4, 6, 6}) * 2;
  SamplerState state;
  const at::Tensor both = sampler->step(state, 0, at::tanh(x), x);
  const at::Tensor second = sampler->step(state, 0, at::tanh(x[1]).unsqueeze(0), x[1].unsqueeze(0));
  CHECK(at::equal(both[1], second[0]));
}

TEST_CASE("a learned variance is dropped, other shapes are refused") {
  const at::Tensor x = at::randn({1, 4, 3, 5});
  const at::Tensor mean = at::randn({1, 4, 3, 5});
  const at::Tensor doubled = at::cat({mean, at::randn({1, 4, 3, 5})}, 1);
  const std::string name = "DPMSolverMultistepScheduler";
  const auto learned = make_sampler(scheduler(name, {{"variance_type", "learned_range"}}), "", 4);
  const auto plain = make_sampler(scheduler(name, json::object()), "", 4);
  SamplerState a, b, c;
  CHECK(at::equal(learned->step(a, 0, doubled, x), plain->step(b, 0, mean, x)));
  CHECK_THROWS_AS(plain->step(c, 0, doubled, x), std::invalid_argument);
  CHECK_THROWS_AS(plain->step(c, 0, mean.narrow(3, 0, 4), x), std::invalid_argument);
}

TEST_CASE("a multistep sampler refuses a state of another step") {
  const auto sampler =
      make_sampler(scheduler("DPMSolverMultistepScheduler", {{"solver_order", 3}}), "", 6);
  const at::Tensor x = at::randn({1, 4, 3, 5});
  SamplerState state;
  CHECK_THROWS_AS(sampler->step(state, 1, x, x), std::invalid_argument);
  sampler->step(state, 0, x, x);
  CHECK_THROWS_AS(sampler->step(state, 0, x, x), std::invalid_argument);
  sampler->step(state, 1, x, x);
  sampler->step(state, 2, x, x);
  CHECK(state.history.size() == 2);
  CHECK_THROWS_AS(sampler->step(state, 6, x, x), std::out_of_range);
}
