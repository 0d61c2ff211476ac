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
#include "models/samplers/schedule_checks.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/models/sampler_support.h"
#include "tests/support/doctest.h"

namespace {

using nlohmann::json;
using troupe::models::make_sampler;
using troupe::models::Sampler;
using troupe::models::SamplerState;
using namespace troupe::models::testing;
using troupe::spec::SchedulerSpec;

const std::filesystem::path kExpected =
    std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/expected";

at::Tensor model(const Sampler& sampler, const at::Tensor& x, int i) {
  const double shift = 0.3 * std::cos(sampler.timestep(i) / 100);
  return at::tanh(0.7 * sampler.scale_model_input(x, i) + shift);
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
  // The reference's tables hold the last bits of one processor's square roots. Where a schedule
  // ends without signal, the first steps divide by next to nothing.
  const auto bound = [](const json& config) {
    return config.value("rescale_betas_zero_snr", false) ? 1e-4 : 5e-6;
  };
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
    const bool learned =
        c["class"] == "DDPMScheduler" && c["config"].value("variance_type", "") == "learned_range";
    if (learned) {  // no pipeline hands the scheduler a variance
      CHECK_THROWS_AS(make_sampler(spec, "", steps), std::runtime_error);
      ++refused;
    }
    if (learned || c.contains("refused") || !c["finite"].get<bool>()) continue;
    troupe::models::SamplerRun run{.num_steps = steps};
    if (c.contains("run")) {
      run.image_tokens = c["run"].value("image_tokens", 0);
      run.even_sigmas = c["run"].value("even_sigmas", false);
      run.first = c["run"].value("first", 0);
    }
    const auto sampler = make_sampler(spec, "", run);
    REQUIRE(sampler->steps() == static_cast<int>(c["timesteps"].size()));
    CHECK(sampler->init_noise_sigma() ==
          doctest::Approx(c["init_noise_sigma"].get<double>()).epsilon(2.5e-7));
    for (int i = 0; i < sampler->steps(); ++i) {
      CHECK(sampler->timestep(i) == doctest::Approx(c["timesteps"][i].get<double>()).epsilon(1e-6));
    }
    const at::Tensor expected = tensors.at(name + ".trajectory");
    auto generator = at::detail::createCPUGenerator(0);
    REQUIRE(at::equal(at::randn({1, 4, 2, 2}, generator), noise));
    at::Tensor x = noise * sampler->init_noise_sigma();
    if (run.first > 0) x = sampler->add_noise(at::tanh(noise.flip(3)), noise, 0);
    CHECK(largest(x - expected[0]) / std::max(largest(expected[0]), 1.0) < 1e-6);
    if (spec.class_name == "PNDMScheduler") {
      const auto config = troupe::spec::scheduler_config_for(spec, "");
      CHECK(sampler->steps() == troupe::models::model_calls(config, run) - run.first);
    }
    SamplerState state;
    for (int i = 0; i < sampler->steps(); ++i) {
      at::Tensor output = model(*sampler, x, i);
      at::Tensor drawn;
      if (sampler->noise_needed(i)) drawn = at::randn({1, 4, 2, 2}, generator);
      x = sampler->step(state, i, output, x, drawn);
      const at::Tensor wanted = expected[i + 1];
      const double error = largest(x - wanted) / largest(wanted);
      worst = std::max(worst, error);
      CAPTURE(i);
      CHECK(error < bound(c["config"]));
    }
    ++compared[c["class"]];
  }
  for (const auto& [name, count] : compared) {
    MESSAGE(name << ": " << count << " trajectories");
    CHECK(count > 10);
  }
  CHECK(compared.size() == 9);
  CHECK(refused == 5);
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
