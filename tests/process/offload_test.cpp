#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/process/quantized_latents.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/models.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

Submission offloaded(Submission submission) {
  submission.request.offload = "blocks";
  return submission;
}

std::uint64_t weights_of(const JobResult& result, int rank) {
  return json::parse(result.report).at("actors")[rank].at("weight_bytes").get<std::uint64_t>();
}

}  // namespace

TEST_CASE("with offload every family's latents have the bits that they have without") {
  Reference reference("quantized");
  for (const std::string family : {"sigma", "sd3", "sd35", "flux", "hunyuan", "wan"}) {
    const auto& of = reference.find(family + "_wide");
    for (const auto& mix : {Parallelism{}, Parallelism{.pp = 2}, Parallelism{.ring = 2},
                            Parallelism{.tp = 2}, Parallelism{.pp = 2, .ulysses = 2, .tp = 2}}) {
      CAPTURE(family + " at " + name_of(mix));
      const auto plain = reference.submission(of, mix);
      CHECK(same_bits(latents_of(offloaded(plain)), latents_of(plain)));
    }
  }
}

TEST_CASE("with offload methods, types, step caches and image parts compute the same bits") {
  auto plain = demo_job(6);
  plain.parallelism = {};
  const auto check = [&](const std::string& what) {
    CAPTURE(what);
    CHECK(same_bits(latents_of(offloaded(plain)), latents_of(plain)));
  };
  auto& request = plain.request;
  for (const std::string method : {"pipefusion", "distrifusion"}) {
    request.method = method;
    plain.parallelism = method == "pipefusion" ? Parallelism{.pp = 2} : Parallelism{.ring = 2};
    check(method);
  }
  request.method = "exact";
  request.num_pipeline_patch = 1;
  plain.parallelism = {};
  for (const std::string dtype : {"bfloat16", "float16"}) {
    request.dtype = dtype;
    check(dtype);
  }
  request.dtype = "float32";
  request.weight_dtype = "int8";
  check("int8");
  request.weight_dtype = "";
  for (const std::string cache : {"first-block", "teacache"}) {
    request.step_cache = cache;
    check(cache);
  }
}

TEST_CASE("with offload a LoRA is added to each block as often as it is read") {
  auto plain = tiny_job();
  plain.model = checkpoint("tiny-sd3");
  plain.request.num_pipeline_patch = 1;
  plain.request.method = "exact";
  plain.request.max_sequence_length = 0;
  plain.request.want_latents = true;
  const auto without = latents_of(plain);
  plain.request.loras = {
      {.path = TROUPE_SOURCE_DIR "/tests/fixtures/lora/sd3.safetensors", .scale = 0.5}};
  for (const auto& mix : {Parallelism{}, Parallelism{.pp = 2}, Parallelism{.tp = 2}}) {
    const auto where = name_of(mix);
    CAPTURE(where);
    plain.parallelism = mix;
    const auto with = latents_of(plain);
    CHECK_FALSE(same_bits(with, without));
    CHECK(same_bits(latents_of(offloaded(plain)), with));
  }
}

TEST_CASE("with offload an actor holds two blocks beside the rest, as planned to the byte") {
  const RandomModel model({.blocks = 8, .heads = 8, .head_dim = 48});
  Submission submission;
  submission.model = model.folder();
  auto& request = submission.request;
  request.prompts = {"a cat"};
  request.height = request.width = 64;
  request.steps = 2;
  request.dtype = "bfloat16";  // not packed in panels: the plan is exact
  for (const auto& mix : {Parallelism{}, Parallelism{.pp = 2, .tp = 3}, Parallelism{.pp = 4}}) {
    const auto where = name_of(mix);
    CAPTURE(where);
    submission.parallelism = mix;
    const auto kept = shared_cluster().run(submission);
    const auto streamed = shared_cluster().run(offloaded(submission));
    const auto plan = plan_of(offloaded(submission));
    for (int rank = 0; rank < mix.world(); ++rank) {
      CHECK(weights_of(streamed, rank) == plan.memory[rank].weights);
      if (mix.pp < 4) CHECK(weights_of(streamed, rank) < weights_of(kept, rank));
    }
    MESSAGE(where << ": " << weights_of(kept, 0) << " bytes, with offload "
                  << weights_of(streamed, 0));
  }
  CHECK(
      json::parse(shared_cluster().run(offloaded(submission)).report).at("request").at("offload") ==
      "blocks");
}

TEST_CASE("a model that no actor can hold runs with offload, and its refusal says so") {
  const RandomModel model({.blocks = 8, .heads = 8, .head_dim = 64});
  Submission submission;
  submission.model = model.folder();
  auto& request = submission.request;
  request.prompts = {"a cat"};
  request.height = request.width = 64;
  request.steps = 2;
  request.dtype = "bfloat16";
  request.want_latents = true;
  const auto whole = plan_of(submission).memory[0].peak();
  const auto small = plan_of(offloaded(submission)).memory[0].peak();
  REQUIRE(small < 0.6 * whole);
  auto options = actors(1);
  options.memory_limit = (small + whole) / 2;
  FaultCluster cluster(options);
  const auto answer = cluster.client().submit(submission);
  REQUIRE_FALSE(answer);
  CHECK(has(answer.error().what, "--offload blocks (slower) needs "));
  CHECK(cluster.run(offloaded(submission)).latents->data ==
        shared_cluster().run(submission).latents->data);
}

TEST_CASE("kill -9: a job with offload ends with the same bits") {
  FaultCluster cluster(actors(2));
  auto job = demo_job(12);
  job.request.method = "exact";
  job.request.num_pipeline_patch = 1;
  job.parallelism = {.pp = 2};
  const auto want = cluster.run(job);
  const auto got = cluster.struck(offloaded(job), 4,
                                  [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
  CHECK(got.latents->data == want.latents->data);
}

TEST_CASE("offload of what is not read block by block is refused by name") {
  auto submission = offloaded(demo_job(1));
  submission.request.offload = "disk";
  CHECK(has(shared_cluster().refusal(submission).what, "`offload` is \"disk\": blocks"));
  submission.request = {};
  submission.parallelism = {};
  submission.request.prompts = {"a cat"};
  submission.request.offload = "blocks";
  submission.model = checkpoint("tiny-sdxl");
  CHECK(has(shared_cluster().refusal(submission).what,
            "`offload` is blocks, but this model is a U-Net"));
}
