#include "tests/process/support/cached.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Checks that with the case's cache the skipped steps and the latents are the oracle's, and that
/// the latents are far from those without a cache. Returns the latter, and leaves the submission
/// without a cache.
Latents check_against_oracle(Reference& reference, const nlohmann::json& of, Submission& submission,
                             const std::string& where, Worst& worst) {
  submission.request.step_cache = of.at("step_cache");
  submission.request.step_cache_threshold = of.at("threshold");
  const auto got = cached(shared_cluster().run(submission));
  CHECK(got.by_step == of.at("skipped_by_step").get<std::vector<int>>());
  const double error = range_error(got.latents, reference.floats(of, "latents"));
  CHECK(error <= kCacheBound);
  worst.see(error, where);
  submission.request.step_cache = "";
  submission.request.step_cache_threshold = 0;
  const auto plain = shared_cluster().run(submission).latents.value();
  CHECK(range_error(plain, got.latents) > 10 * kCacheBound);
  return plain;
}

}  // namespace

TEST_CASE(
    "the first-block cache leaves out what diffusers' own does, TeaCache what its rule says") {
  Reference reference("step_cache");
  Worst worst;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    auto submission = reference.submission(of);
    check_against_oracle(reference, of, submission, name, worst);
  }
  MESSAGE(worst.seen << " cases within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("by patches, what is left out and the pictures are the oracle's, at any degrees") {
  Reference reference("step_cache_patches");
  const std::vector<Parallelism> mixes = {{.pp = 2},      {.ring = 2},        {.cfg = 2},
                                          {.ulysses = 2}, {.pp = 3, .tp = 2}, {.pp = 2, .ring = 3}};
  Worst worst;
  std::size_t turn = 0;
  for (const auto& of : reference.cases()) {
    // One actor, and each case at two of the mixes.
    for (const auto& mix :
         {Parallelism{}, mixes[turn % mixes.size()], mixes[(turn + 1) % mixes.size()]}) {
      const auto where = of.at("name").get<std::string>() + " at " + name_of(mix);
      CAPTURE(where);
      auto submission = reference.submission(of, mix);
      submission.request.step_cache = of.at("step_cache");
      submission.request.step_cache_threshold = of.at("threshold");
      const auto got = cached(shared_cluster().run(submission));
      CHECK(got.by_step == of.at("skipped_by_step").get<std::vector<int>>());
      const double error = range_error(got.latents, reference.floats(of, "latents"));
      CHECK(error <= kCacheBound);
      worst.see(error, where);
    }
    turn += 2;
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("every family with either cache makes one picture at any degrees") {
  Reference reference("families");
  struct Way {
    const char* family;
    const char* cache;
    double threshold;
  };
  const Way ways[] = {{"sigma", "first-block", 0.2},   {"sigma", "teacache", 0.4},
                      {"sd3", "first-block", 0.7},     {"sd35", "teacache", 0.5},
                      {"flux", "first-block", 0.6},    {"flux", "teacache", 1.0},
                      {"hunyuan", "first-block", 0.4}, {"hunyuan", "teacache", 0.4}};
  Worst worst;
  for (const auto& way : ways) {
    const std::string family = way.family;
    auto submission = of_case(reference, family + "_wide", way.cache, way.threshold);
    submission.request.steps = 8;
    std::vector<Parallelism> mixes = {{.pp = 2},   {.pp = 3}, {.ulysses = 2},
                                      {.ring = 2}, {.tp = 2}, {.pp = 2, .ulysses = 2, .ring = 2}};
    if (family != "flux") mixes.insert(mixes.end(), {{.cfg = 2}, {.cfg = 2, .pp = 2, .tp = 2}});
    check_mixes(submission, family + " " + way.cache, mixes, worst);
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("a video's steps are left out, too, at any degrees") {
  Reference reference("wan");
  Worst worst;
  struct Way {
    const char* cache;
    double threshold;
    const char* method;
  };
  for (const auto& way :
       {Way{"first-block", 0.4, "exact"}, Way{"teacache", 2, "exact"},
        Way{"first-block", 0.4, "pipefusion"}, Way{"teacache", 2, "distrifusion"}}) {
    auto submission = of_case(reference, "wan_plain", way.cache, way.threshold);
    auto& request = submission.request;
    request.height = 32;
    request.steps = 8;
    request.method = way.method;
    request.num_pipeline_patch = request.method == "exact" ? 1 : 3;
    check_mixes(submission, std::string("wan ") + way.method + " " + way.cache,
                {{.pp = 2}, {.ring = 2}, {.cfg = 2}, {.ulysses = 2, .tp = 2}}, worst);
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("pictures of one job decide for themselves, whoever computes them") {
  Reference reference("step_cache");
  auto submission = of_case(reference, "sigma_two_first_block", "first-block", 0.21);
  Worst worst;
  check_mixes(submission, "two pictures", {{.dp = 2}, {.dp = 2, .cfg = 2}, {.pp = 2}, {.pp = 3}},
              worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("by patches, each patch decides, and no degree changes what it decides") {
  Reference reference("families");
  struct Way {
    const char* family;
    const char* cache;
    double threshold;
    const char* method;
    const char* kv;
    int patches;
  };
  const Way ways[] = {{"sigma", "first-block", 0.2, "pipefusion", "stale", 4},
                      {"sigma", "first-block", 0.2, "distrifusion", "stale", 3},
                      {"sigma", "teacache", 0.4, "pipefusion", "predict", 4},
                      {"sigma", "teacache", 0.4, "distrifusion", "predict", 4},
                      {"flux", "first-block", 0.6, "pipefusion", "stale", 4},
                      {"sd35", "first-block", 0.5, "distrifusion", "stale", 3},
                      {"hunyuan", "first-block", 0.4, "pipefusion", "stale", 4}};
  const std::vector<Parallelism> all = {
      {.pp = 2},   {.pp = 3}, {.ulysses = 2},       {.ring = 2},
      {.ring = 3}, {.tp = 2}, {.pp = 2, .ring = 2}, {.pp = 2, .ulysses = 2, .ring = 2}};
  Worst worst;
  for (const auto& way : ways) {
    const std::string family = way.family;
    auto submission = of_case(reference, family + "_wide", way.cache, way.threshold);
    submission.request.steps = 8;
    submission.request.method = way.method;
    submission.request.kv = way.kv;
    submission.request.num_pipeline_patch = way.patches;
    submission.request.warmup_steps = 2;
    auto mixes = all;
    if (family != "flux") mixes.push_back({.cfg = 2, .pp = 2});
    check_mixes(submission, family + " " + way.method + " " + way.kv + " " + way.cache, mixes,
                worst);
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("pictures of one job by patches, in one batch") {
  Reference reference("step_cache");
  Worst worst;
  for (const std::string method : {"pipefusion", "distrifusion"}) {
    for (const std::string kv : {"stale", "predict"}) {
      auto submission = of_case(reference, "sigma_two_first_block", "first-block", 0.2);
      submission.request.method = method;
      submission.request.kv = kv;
      submission.request.num_pipeline_patch = 3;
      check_mixes(submission, "two pictures " + method + " " + kv,
                  {{.dp = 2}, {.cfg = 2}, {.pp = 2, .ring = 2}}, worst);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("a U-Net leaves out what an oracle on diffusers' layers does, at any degrees") {
  Reference reference("step_cache_unet");
  Worst worst;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    const bool patched = of.contains("patches");
    std::vector<Parallelism> mixes = {{}, {.cfg = 2}, {.ring = 2}, {.cfg = 2, .ulysses = 2}};
    if (name.find("two") != std::string::npos) mixes.push_back({.dp = 2, .cfg = 2});
    if (patched && of.at("patches") == 3) mixes.push_back({.ring = 3});
    for (const auto& mix : mixes) {
      const auto where = name + " at " + name_of(mix);
      CAPTURE(where);
      auto submission = reference.submission(of, mix);
      const auto plain = check_against_oracle(reference, of, submission, where, worst);
      // Where no step changes as little as that, the picture is that without a cache. By patches
      // each item is then computed alone, and one picture's branches are alone at cfg 2.
      submission.request.step_cache = of.at("step_cache");
      submission.request.step_cache_threshold = 1e-9;
      const auto all = cached(shared_cluster().run(submission));
      CHECK(all.skipped == 0);
      const bool alone = !patched || (mix.cfg == 2 && of.at("prompts").size() == 1);
      if (alone) CHECK(all.latents.data == plain.data);
      CHECK(range_error(all.latents, plain) <= kCacheDegreesBound);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}
