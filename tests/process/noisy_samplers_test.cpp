#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/models.h"
#include "tests/process/support/same_picture.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

// Samplers that draw noise at each step: every degree must draw, and use, the same.

using namespace troupe;
using namespace troupe::testing;

namespace {

struct NoisyWay {
  const char* method;
  const char* kv;
  int patches;
  std::vector<Parallelism> mixes;
};

/// Returns a job of three pictures, so that two replicas have uneven shares of the noise, too; five
/// rows of tokens.
Submission three_pictures(const std::string& model, const std::string& sampler) {
  Submission submission;
  submission.model = model;
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree", "a blue square"};
  request.height = 80;
  request.width = 48;
  request.steps = 5;
  request.seed = 17;
  request.guidance_scale = 3;
  request.max_sequence_length = 12;
  request.sampler = sampler;
  request.want_latents = true;
  return submission;
}

/// Checks that from the same latents another seed makes another picture: the seed is used in the
/// steps.
void check_that_noise_is_added(Submission submission, const Latents& start) {
  submission.request.init_latents = start;
  const auto one = shared_cluster().run(submission).latents.value();
  ++submission.request.seed;
  CHECK(range_error(shared_cluster().run(submission).latents.value(), one) > 1e-2);
}

}  // namespace

TEST_CASE("samplers that add noise make a transformer's picture the same at any degrees") {
  const NoisyWay ways[] = {
      {"exact", "stale", 1, {{.pp = 3}, {.dp = 2, .ulysses = 3}, {.ring = 2}, {.cfg = 2, .tp = 2}}},
      {"pipefusion", "stale", 4, {{.pp = 3}, {.dp = 2, .pp = 2, .ring = 2}}},
      {"pipefusion", "predict", 3, {{.cfg = 2, .pp = 2, .tp = 2}}},
      {"distrifusion", "stale", 3, {{.dp = 3, .ulysses = 2}}}};
  SchedulerVariants variants;
  const auto flow = variants.with_scheduler("tiny-sd3", "FlowMatchEulerDiscreteScheduler",
                                            {{"shift", 3.0}, {"stochastic_sampling", true}});
  const std::pair<std::string, std::string> samplers[] = {
      {checkpoint("tiny-pixart"), "euler-ancestral"},
      {checkpoint("tiny-pixart"), "sde-dpmsolver++"},
      {checkpoint("tiny-pixart"), "ddpm"},
      {checkpoint("tiny-pixart"), "lcm"},
      {flow, ""}};
  for (const auto& [model, sampler] : samplers) {
    CAPTURE(sampler);
    Seen seen;
    auto submission = three_pictures(model, sampler);
    for (const auto& way : ways) {
      submission.request.method = way.method;
      submission.request.kv = way.kv;
      submission.request.num_pipeline_patch = way.patches;
      SamePicture picture(shared_cluster(), submission, seen);
      for (const auto& mix : way.mixes)
        picture.check_at(mix);
      if (way.patches == 1) check_that_noise_is_added(submission, picture.latents());
    }
    MESSAGE((sampler.empty() ? "stochastic flow-euler" : sampler) << ": " << seen.text());
  }
}
