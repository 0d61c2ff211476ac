#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kLatentBound = 1e-4;  // of the reference's range

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
  check_pictures(reference, kLatentBound, latents, levels);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), " << levels.seen << " pictures within "
                       << levels.value << " levels");
}

TEST_CASE("every family makes one picture at any degrees, exact and by patches") {
  Reference reference("families");
  for (const auto& family : kFamilies) {
    Worst worst;
    check_degrees(reference, family + "_wide", mixes_of(family), worst);
    MESSAGE(family << ": " << worst.seen << " runs within " << worst.value << " of range ("
                   << worst.where << ")");
  }
}

TEST_CASE("every family's half precision stays near diffusers' float32, on several actors") {
  Reference reference("families");
  const std::pair<std::string, double> bounds[] = {{"bfloat16", 0.05}, {"float16", 0.01}};
  for (const auto& [dtype, bound] : bounds) {
    Worst worst;
    for (const auto& family : kFamilies)
      check_half(reference, family + "_plain", dtype, bound, worst);
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
  Worst worst;
  check_oracle(reference, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("plans know every family's weights, K,V and what each rank sends, to the byte") {
  Reference reference("families");
  for (const auto& family : kFamilies)
    check_foreseen(reference, family + "_wide");
}
