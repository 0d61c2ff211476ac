#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/process/quantized_latents.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Folders of one FLUX.1 model that tests/reference/original_files.py has made: its weights in GGUF
/// or in 8-bit floats, and beside each of them one with the values of these in float32.
const std::filesystem::path kFiles = kMade / "original-files";

Submission flux_job(const std::string& folder) {
  Submission submission;
  submission.model = (kFiles / folder / "tiny-flux").string();
  auto& request = submission.request;
  request.prompts = {"a cat"};
  request.max_sequence_length = 8;
  request.height = request.width = 64;
  request.steps = 2;
  request.want_latents = true;
  return submission;
}

}  // namespace

TEST_CASE("weights that stay packed make the bits of the unpacked ones, at any degrees") {
  if (lacks_made_fixtures()) return;
  const Parallelism mixes[] = {
      {}, {.tp = 2}, {.pp = 2, .tp = 3}, {.ulysses = 3}, {.pp = 2, .ring = 2}};
  for (const std::string kind : {"gguf", "fp8"}) {
    for (const auto& mix : mixes) {
      auto packed = flux_job(kind), plain = flux_job(kind + "-values");
      packed.parallelism = plain.parallelism = mix;
      CAPTURE(kind + " at " + name_of(mix));
      const auto run = [](const Submission& submission) {
        return shared_cluster().run(submission).latents.value();
      };
      const auto want = run(plain);
      CHECK(same_bits(run(packed), want));
      packed.request.offload = "blocks";
      CHECK(same_bits(run(packed), want));
    }
  }
}

TEST_CASE("plans and actors count packed weights as their file has them, LoRAs unpacked") {
  if (lacks_made_fixtures()) return;
  for (const std::string kind : {"gguf", "fp8"}) {
    for (const auto& mix : {Parallelism{}, Parallelism{.tp = 2}, Parallelism{.pp = 2, .tp = 3}}) {
      CAPTURE(kind + " at " + name_of(mix));
      auto packed = flux_job(kind), plain = flux_job(kind + "-values");
      for (auto* job : {&packed, &plain}) {
        job->parallelism = mix;
        job->request.dtype = "bfloat16";  // not in panels: exact
      }
      const Foreseen foreseen(packed);
      check_weights(nlohmann::json::parse(shared_cluster().run(packed).report), foreseen);
      const auto whole = plan_of(plain).memory[0].weights;
      CHECK(foreseen.plan.memory[0].weights < (kind == "fp8" ? 0.7 : 1.0) * double(whole));
      packed.request.loras = {{TROUPE_SOURCE_DIR "/tests/fixtures/lora/flux.safetensors", 1}};
      CHECK(plan_of(packed).memory[0].weights == whole);
    }
  }
}

TEST_CASE("a LoRA over packed weights makes the bits of one over unpacked weights") {
  if (lacks_made_fixtures()) return;
  for (const std::string kind : {"gguf", "fp8"}) {
    CAPTURE(kind);
    auto packed = flux_job(kind), plain = flux_job(kind + "-values");
    const auto without = shared_cluster().run(plain).latents.value();
    for (auto* job : {&packed, &plain})
      job->request.loras = {{TROUPE_SOURCE_DIR "/tests/fixtures/lora/flux.safetensors", 0.5}};
    const auto want = shared_cluster().run(plain).latents.value();
    CHECK_FALSE(same_bits(want, without));
    CHECK(same_bits(shared_cluster().run(packed).latents.value(), want));
  }
}
