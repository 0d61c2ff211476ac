#include <nlohmann/json.hpp>
#include <string>

#include "tests/process/support/compare.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

// PNDM in a transformer, whose own folder names another sampler: more calls than steps, and states
// that differ from call to call. U-Nets and diffusers' pictures: unet_jobs_test.cpp.

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kPndmBound = 1e-5;  // of the range of the single actor's latents

struct SamplerWay {
  const char* name;
  std::function<void(ImageRequest&)> change;
  std::vector<Parallelism> mixes;
};

}  // namespace

TEST_CASE("PNDM's calls are the same at any degrees, by every method of a transformer") {
  Reference reference("pipeline");
  const auto by_patches = [](const char* method, const char* kv) {
    return [=](ImageRequest& request) {
      request.method = method;
      request.num_pipeline_patch = 3;
      request.warmup_steps = 2;
      request.kv = kv;
    };
  };
  const std::vector<SamplerWay> ways = {
      {"exact", [](ImageRequest&) {}, {{.cfg = 2, .ulysses = 2}, {.pp = 2, .tp = 2}}},
      {"pipefusion", by_patches("pipefusion", "stale"), {{.pp = 2}, {.pp = 3, .ring = 2}}},
      {"pipefusion, predicted", by_patches("pipefusion", "predict"), {{.cfg = 2, .pp = 3}}},
      {"distrifusion", by_patches("distrifusion", "stale"), {{.ring = 3}, {.cfg = 2, .pp = 2}}},
      {"step cache",
       [](ImageRequest& request) {
         request.step_cache = "first-block";
         request.step_cache_threshold = 0.2;
       },
       {{.pp = 2}, {.cfg = 2, .ulysses = 2}}},
      {"refill",
       [&](ImageRequest& request) {
         by_patches("pipefusion", "stale")(request);
         request.refill_steps = {13};
       },
       {{.pp = 2}}}};
  Worst worst;
  for (const SamplerWay& way : ways) {
    auto submission = reference.submission(reference.find("plain"));
    submission.request.sampler = "pndm";
    submission.request.steps = 6;
    way.change(submission.request);
    submission.parallelism = {};
    const auto one = shared_cluster().run(submission);
    const auto said = nlohmann::json::parse(one.report)["request"];
    CHECK(said["steps"] == 6);
    CHECK(said["model_calls"] == 15);
    for (const auto& mix : way.mixes) {
      CAPTURE(std::string(way.name) + " at " + name_of(mix));
      submission.parallelism = mix;
      const auto many = shared_cluster().run(submission);
      const double error = range_error(many.latents.value(), one.latents.value());
      CHECK(error <= kPndmBound);
      worst.see(error, std::string(way.name) + " at " + name_of(mix));
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}
