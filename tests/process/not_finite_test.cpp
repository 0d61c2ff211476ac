// NaN and infinity: named by actor, step, patch, stage and layer, and the cluster goes on.
#include <cmath>

#include "tests/process/support/damage.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/models.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

FaultCluster& finite_cluster() {
  static FaultCluster shared(actors(2));
  return shared;
}

void check_fails(const Submission& submission, const std::vector<std::string>& words) {
  const auto result = finite_cluster().client().wait(finite_cluster().submit(submission), 600s);
  REQUIRE(!result);
  INFO(result.error().what);
  for (const auto& word : words) {
    INFO(word);
    CHECK(has(result.error().what, word));
  }
}

Submission patches_job() {
  auto job = tiny_job();
  job.request.method = "pipefusion";
  job.request.num_pipeline_patch = 2;
  job.request.warmup_steps = 0;
  return job;
}

/// tiny_job's latents [1, 4, 16, 16] with some numbers at the start of one row.
Latents latents_with(int row, const std::vector<float>& numbers) {
  Latents latents{{1, 4, 16, 16}, std::vector<float>(1024, 0.5F)};
  std::copy(numbers.begin(), numbers.end(), latents.data.begin() + row * 16);
  return latents;
}

}  // namespace

TEST_CASE("in the latents: before the first block, of the patch that has it") {
  const auto good = finite_cluster().run(tiny_job());
  auto job = tiny_job();
  job.request.init_latents = latents_with(4, {std::nanf("")});
  check_fails(job, {"prediction at step 0 stage 0 (blocks 0 to 4) is not finite before block 0",
                    "float32", "actor"});
  job.parallelism.pp = 2;
  job.request.init_latents = latents_with(4, {3e38F, -3e38F});
  check_fails(job, {"hidden state at step 0 stage 0", "not finite before block 0", "actor 0"});
  // Patch 0 has the upper eight rows and sees nothing of the lower ones, which come first.
  job = patches_job();
  job.request.init_latents = latents_with(8, {std::nanf("")});
  check_fails(job, {"step 0 patch 1 stage 0", "not finite before block 0"});
  job.parallelism.pp = 2;
  check_fails(job, {"step 0 patch 1 stage 0", "not finite before block 0", "actor 0"});
  CHECK(finite_cluster().run(tiny_job()).pictures[0].png == good.pictures[0].png);
  CHECK(finite_cluster().restarts() == 0);
}

TEST_CASE("in a transformer's block, that block is named, at any degrees") {
  const Scratch place;
  const auto model = copy_of("tiny-pixart", place.path);
  const auto weights = model / "transformer/diffusion_pytorch_model.safetensors";
  fill_with(weights, "transformer_blocks.3.ff.net.2.weight", 3e38F);
  const std::string block = "not finite after block 3";
  auto job = tiny_job();
  job.model = model.string();
  check_fails(job, {"step 0 stage 0 (blocks 0 to 4)", block});
  job.parallelism.pp = 2;
  check_fails(job, {"step 0 stage 1", block, "actor 1"});
  job.parallelism = {.ulysses = 2};
  check_fails(job, {"step 0 stage 0", block});
  job = patches_job();
  job.model = model.string();
  check_fails(job, {"step 0 patch 0 stage 0", block});
  job = tiny_job();
  job.model = copy_of("tiny-pixart", place.path).string();
  fill_with(weights, "proj_out.weight", 3e38F);
  check_fails(job, {"prediction at step 0", "not finite after the projection"});
  CHECK(finite_cluster().restarts() == 0);
}

TEST_CASE("in a U-Net the group norm before it is named") {
  const Scratch place;
  const auto model = copy_of("tiny-sd15", place.path);
  fill_with(model / "unet/diffusion_pytorch_model.safetensors",
            "down_blocks.0.resnets.0.conv1.weight", 3e38F);
  auto job = tiny_job();
  job.model = model.string();
  // Norm 0 is that resnet's first, norm 1 takes what the convolution gave.
  check_fails(job, {"prediction at step 0", "not finite after group norm 0,"});
  CHECK(finite_cluster().restarts() == 0);
}
