#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kLatentBound = 1e-4;   // of the reference's range
constexpr double kDegreesBound = 1e-5;  // of the range of the single actor's latents
constexpr int kLevelBound = 1;          // of 255

const std::vector<std::string> kFamilies = {"sigma", "sd3",          "sd35",
                                            "flux",  "flux-schnell", "hunyuan"};

bool has_branches(const std::string& family) {
  return !family.starts_with("flux");
}

/// Returns mixes that a joint model must do as well as any other: split pictures, heads, rows,
/// weights, stages and branches, also where a rank has no row or no head. Of every three that
/// follow one another, one has replicas.
std::vector<Parallelism> mixes_of(const std::string& family) {
  std::vector<Parallelism> mixes = {{.pp = 2},
                                    {.pp = 3},
                                    {.ulysses = 2},
                                    {.ulysses = 3},
                                    {.ring = 2},
                                    {.ring = 3},
                                    {.tp = 2},
                                    {.dp = 2, .tp = 4},
                                    {.dp = 2, .ulysses = 2, .ring = 2},
                                    {.dp = 2, .pp = 2, .ulysses = 2},
                                    {.pp = 2, .ring = 2, .tp = 2}};
  if (family == "hunyuan") {
    // Six blocks: two stages that leave for several behind the next, and one that takes of several.
    for (const auto& stages : {std::vector{2, 1, 2, 1}, {2, 2, 1, 1}, {1, 1, 2, 2}})
      mixes.push_back({.pp = 4, .stages = stages});
  }
  if (has_branches(family)) {
    mixes.push_back({.cfg = 2});
    mixes.push_back({.cfg = 2, .pp = 2, .ulysses = 2});
  }
  return mixes;
}

}  // namespace

TEST_CASE("every family's pictures are those of its pipeline in diffusers") {
  Reference reference("families");
  Worst latents;
  Worst levels;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(reference.submission(of));
    REQUIRE(result.latents);
    const double error = range_error(*result.latents, reference.floats(of, "latents"));
    CHECK(error <= kLatentBound);
    latents.see(error, name);
    if (!of.at("image").get<bool>()) continue;
    for (std::size_t i = 0; i < result.pictures.size(); ++i) {
      const int level = level_error(decode_png(result.pictures[i].png),
                                    picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= kLevelBound);
      levels.see(level, name);
    }
  }
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), " << levels.seen << " pictures within "
                       << levels.value << " levels");
}

TEST_CASE("every family makes one picture at any degrees, exact and by patches") {
  Reference reference("families");
  struct Way {
    const char* method;
    const char* kv;
    int patches;
  };
  const Way ways[] = {{"exact", "stale", 1},
                      {"pipefusion", "stale", 4},
                      {"pipefusion", "predict", 3},
                      {"distrifusion", "stale", 3},
                      {"distrifusion", "predict", 2}};
  for (const auto& family : kFamilies) {
    Worst worst;
    const auto mixes = mixes_of(family);
    std::size_t turn = 0;
    for (const auto& way : ways) {
      auto submission = reference.submission(reference.find(family + "_wide"));
      auto& request = submission.request;
      request.prompts.push_back("a tree");
      request.method = way.method;
      request.kv = way.kv;
      request.num_pipeline_patch = way.patches;
      const auto single = shared_cluster().run(submission).latents.value();
      // By patches, every third mix, so that each way meets others.
      const std::size_t stride = way.patches == 1 || full_matrix() ? 1 : 3;
      for (std::size_t i = stride == 1 ? 0 : turn++ % stride; i < mixes.size(); i += stride) {
        const auto where = family + " " + way.method + " " + way.kv + " at " + name_of(mixes[i]);
        CAPTURE(where);
        submission.parallelism = mixes[i];
        const double error = range_error(shared_cluster().run(submission).latents.value(), single);
        CHECK(error <= kDegreesBound);
        worst.see(error, where);
      }
    }
    MESSAGE(family << ": " << worst.seen << " runs within " << worst.value << " of range ("
                   << worst.where << ")");
  }
}

TEST_CASE("every family's half precision stays near diffusers' float32, on several actors") {
  Reference reference("families");
  const std::pair<std::string, double> bounds[] = {{"bfloat16", 0.05}, {"float16", 0.01}};
  for (const auto& [dtype, bound] : bounds) {
    Worst worst;
    for (const auto& family : kFamilies) {
      CAPTURE(family + " " + dtype);
      const auto& of = reference.find(family + "_plain");
      auto submission = reference.submission(of, {.pp = 2, .ring = 2});
      submission.request.dtype = dtype;
      const double error = range_error(shared_cluster().run(submission).latents.value(),
                                       reference.floats(of, "latents"));
      CHECK(error <= bound);
      CHECK(error > 1e-5);  // it was computed in half precision at all
      worst.see(error, family);
    }
    MESSAGE(dtype << ": " << worst.seen << " families within " << worst.value << " of range ("
                  << worst.where << ")");
  }
}

TEST_CASE("a model without a negative branch refuses cfg 2 and says why") {
  Reference reference("families");
  for (const auto& [family, why] :
       {std::pair<std::string, std::string>{"flux", "takes the guidance scale as an input"},
        {"flux-schnell", "was distilled without guidance"}}) {
    const auto error = shared_cluster().refusal(
        reference.submission(reference.find(family + "_plain"), {.cfg = 2}));
    CAPTURE(error.what);
    CHECK(error.code == ErrorCode::bad_request);
    CHECK(error.what.find(why) != std::string::npos);
  }
}

TEST_CASE("joint models by patches equal the oracle, on one actor and on several") {
  Reference reference("families_patches");
  const std::vector<Parallelism> mixes = {
      {}, {.pp = 2}, {.ulysses = 2}, {.ring = 2}, {.tp = 2}, {.pp = 2, .ulysses = 2, .ring = 2}};
  Worst worst;
  std::size_t turn = 0;
  for (const auto& of : reference.cases()) {
    // One actor, and each case at another of the mixes.
    for (const auto& mix : {Parallelism{}, mixes[1 + turn++ % (mixes.size() - 1)]}) {
      const auto where = of.at("name").get<std::string>() + " at " + name_of(mix);
      CAPTURE(where);
      const auto got = shared_cluster().run(reference.submission(of, mix)).latents.value();
      const double error = range_error(got, reference.floats(of, "latents"));
      CHECK(error <= kLatentBound);
      worst.see(error, where);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("plans know every family's weights, K,V and what each rank sends, to the byte") {
  Reference reference("families");
  struct Way {
    const char* method;
    const char* kv;
    int patches;
  };
  const Way ways[] = {
      {"exact", "stale", 1}, {"pipefusion", "predict", 3}, {"distrifusion", "predict", 2}};
  const Parallelism mixes[] = {
      {}, {.pp = 3}, {.ulysses = 2, .ring = 2}, {.tp = 2}, {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& family : kFamilies) {
    for (const auto& mix : mixes) {
      for (const auto& way : ways) {
        CAPTURE(family + " " + way.method + " at " + name_of(mix));
        auto submission = reference.submission(reference.find(family + "_wide"), mix);
        auto& request = submission.request;
        request.method = way.method;
        request.kv = way.kv;
        request.num_pipeline_patch = way.patches;
        request.dtype = "bfloat16";  // not packed in panels, so that odd widths are exact, too
        const Foreseen foreseen(submission);
        const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
        check_weights(report, foreseen);
        // Padding that is masked out is not kept: prompts are shorter than they may be.
        if (foreseen.model.transformer.pads_text) check_kv(report, foreseen);
        check_sent(report, foreseen);
      }
    }
  }
}
