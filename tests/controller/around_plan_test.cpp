#include <filesystem>

#include "controller/gateway/model_reader.h"
#include "controller/plan/around.h"
#include "controller/plan/plan.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures/";

wire::ImageRequest request_of(double strength, int steps) {
  wire::ImageRequest request;
  request.prompts = {"a cat"};
  request.init_image_bytes = 100;
  request.strength = strength;
  request.steps = steps;
  request.max_sequence_length = 0;
  return request;
}

gateway::ModelReading read(const std::string& folder, const std::vector<wire::Lora>& loras,
                           gateway::AllowedFolders allowed) {
  boost::asio::io_context io;
  gateway::ModelReader reader(io, {}, std::move(allowed));
  const auto work = boost::asio::make_work_guard(io);
  gateway::ModelReading found;
  reader.read(folder, loras, [&](const gateway::ModelReading& reading) {
    found = reading;
    io.stop();
  });
  io.run_for(std::chrono::seconds(20));
  return found;
}

}  // namespace

TEST_CASE("strength leaves out what diffusers' pipelines leave out") {
  // init = min(N · S, N), start = int(N − init); others round N · S down first.
  CHECK(plan::skipped_steps(10, 0.75, true) == 2);
  CHECK(plan::skipped_steps(10, 0.75, false) == 3);
  CHECK(plan::skipped_steps(6, 0.6, true) == 2);
  CHECK(plan::skipped_steps(6, 0.6, false) == 3);
  for (const bool flow : {true, false}) {
    CHECK(plan::skipped_steps(20, 1, flow) == 0);
    CHECK(plan::skipped_steps(20, 0, flow) == 20);
  }
}

TEST_CASE("a plan computes the steps that are left, and its patches follow them") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd3");
  auto request = request_of(0.6, 6);
  request.method = "pipefusion";
  request.num_pipeline_patch = 2;
  request.warmup_steps = 4;
  const auto plan = plan::make_plan(model, request, {.pp = 2});
  CHECK(plan.skipped_steps == 2);
  CHECK(plan.request.steps == 4);
  CHECK(plan.synchronous_steps == 4);
  request.warmup_steps = 5;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }), "only 4 steps"));
  CHECK(plan::make_plan(model, request_of(0.1, 6), {}).request.steps == 1);
  CHECK(has(message_of([&] { plan::make_plan(model, request_of(0, 6), {}); }), "none is left"));
  auto both = request_of(0.6, 6);
  both.init_latents_blob = 3;
  CHECK(has(message_of([&] { plan::make_plan(model, both, {}); }), "do not go together"));
  auto rescaled = request_of(1, 3);
  rescaled.guidance_rescale = 0.5;
  CHECK(has(message_of([&] { plan::make_plan(model, rescaled, {}); }),
            "StableDiffusion3Pipeline has none"));
}

TEST_CASE("LoRAs are held against the model, in allowed folders alone, and have fingerprints") {
  const std::string model = kFixtures + "tiny-flux", file = kFixtures + "lora/flux.safetensors";
  const auto reading = read(model, {{file, 0.5}}, {});
  REQUIRE(reading.model);
  REQUIRE(reading.loras.size() == 1);
  CHECK(reading.loras[0].scale == 0.5);
  CHECK(reading.lora_fingerprints.at(0) != 0);
  CHECK(has(read(model, {{file, 1}, {kFixtures + "lora/sd3.safetensors", 1}}, {}).error,
            "sd3.safetensors: tensor \""));

  const Scratch folder;
  const auto copy = folder / "x.safetensors";
  std::filesystem::copy_file(file, copy);
  const gateway::AllowedFolders own({kFixtures + "tiny-flux"});
  CHECK(read(model, {}, own).model);
  for (const auto& path : {copy, folder / "none.safetensors", std::string("flux.safetensors")}) {
    const auto refused = read(model, {{path, 1}}, own);
    CHECK(!refused.model);
    CHECK(has(refused.error, "may not name this folder"));
  }
  const auto first = read(model, {{copy, 1}}, {}).lora_fingerprints;
  std::filesystem::remove(copy);
  std::filesystem::copy_file(kFixtures + "lora/flux_kohya.safetensors", copy);
  CHECK(read(model, {{copy, 1}}, {}).lora_fingerprints != first);
}
