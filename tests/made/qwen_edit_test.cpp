#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kEditBound = 1e-5;  // of the reference's range, or of the single actor's

}  // namespace

TEST_CASE("Qwen-Image-Edit's pictures are those of its pipelines in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_edit");
  Worst latents, levels;
  check_pictures(reference, kEditBound, latents, levels);
  CHECK(latents.seen == 7);
  CHECK(levels.seen == 2);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("Qwen-Image-Edit makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_edit");
  auto submission = reference.submission(reference.find("qwen-edit_plus_two"));
  const Parallelism mixes[] = {
      {.cfg = 2, .pp = 2}, {.ulysses = 3}, {.ring = 2, .tp = 2}, {.dp = 2, .pp = 3}};
  Worst worst;
  for (const auto& way :
       {Way{"exact", "stale", 1}, Way{"pipefusion", "stale", 3}, Way{"distrifusion", "stale", 2}}) {
    way.set(submission.request);
    submission.parallelism = {};
    const auto single = shared_cluster().run(submission).latents.value();
    for (const auto& mix : mixes) {
      const auto where = std::string(way.method) + " at " + name_of(mix);
      CAPTURE(where);
      submission.parallelism = mix;
      const Foreseen foreseen(submission);
      const auto several = shared_cluster().run(submission);
      const double error = range_error(several.latents.value(), single);
      CHECK(error <= kDegreesBound);
      worst.see(error, where);
      check_sent(nlohmann::json::parse(several.report), foreseen);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Qwen-Image-Edit by patches equals the oracle") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_edit_patches");
  Worst worst;
  check_oracle(reference, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("kill -9 of an actor leaves an edited picture as it is, to the bit") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_edit");
  auto job = reference.submission(reference.find("qwen-edit_plus_three"), {.cfg = 2, .pp = 2});
  job.request.steps = 4;
  job.request.negative_prompt = "a dog";
  job.request.guidance_scale = 3;
  FaultCluster cluster(actors(4));
  const auto undisturbed = cluster.run(job);
  const auto result =
      cluster.struck(job, 2, [&](std::uint64_t) { kill(cluster.pids().at(3), SIGKILL); });
  CHECK(result.latents->data == undisturbed.latents->data);
}

TEST_CASE("a prompt that asks for a picture by its own is refused when it is planned") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_edit");
  auto submission = reference.submission(reference.find("qwen-edit_plus_two"));
  submission.request.prompts = {"a cat <|image_pad|>"};
  CHECK(shared_cluster().refusal(submission).what ==
        "[plan] `prompts` has <|image_pad|>, which stands for a picture");
}
