#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kBound = 1e-5;  // of the reference's range, or of the single actor's

}  // namespace

TEST_CASE("Z-Image's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  Worst latents, levels;
  check_pictures(reference, kBound, latents, levels, add_made_lora);
  CHECK(latents.seen >= 11);
  CHECK(levels.seen >= 2);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("Z-Image makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 4},
                                          {.ulysses = 3},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.ulysses = 2, .ring = 2},
                                          {.tp = 4},
                                          {.dp = 2, .pp = 3},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  // Texts of different length, and rows that leave a picture to be filled up.
  check_degrees(reference, "zimage_wide", mixes, worst, "a tree by the river");
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Z-Image is streamed, rounded to 16 and to 8 bits and with a LoRA at several degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  const auto error_of = [&](const char* name, auto change) {
    const auto& of = reference.find(name);
    auto submission = reference.submission(of, {.pp = 2, .tp = 2});
    add_made_lora(of, submission);
    change(submission.request);
    return range_error(shared_cluster().run(submission).latents.value(),
                       reference.floats(of, "latents"));
  };
  CHECK(error_of("zimage_plain", [](auto& of) { of.offload = "blocks"; }) <= kBound);
  CHECK(error_of("zimage_lora", [](auto&) {}) <= kBound);
  CHECK(error_of("zimage_plain", [](auto& of) { of.dtype = "bfloat16"; }) <= 0.05);
  CHECK(error_of("zimage_plain", [](auto& of) { of.dtype = "float16"; }) <= 0.01);
  auto eight = reference.submission(reference.find("zimage_plain"));
  eight.request.weight_dtype = "int8";
  const auto single = shared_cluster().run(eight).latents.value();
  eight.parallelism = {.tp = 2};
  const Foreseen foreseen(eight);
  const auto several = shared_cluster().run(eight);
  CHECK(range_error(several.latents.value(), single) <= kBound);
  check_sent(nlohmann::json::parse(several.report), foreseen);
}

TEST_CASE("plans know Z-Image's weights and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  check_foreseen(reference, "zimage_wide");
}
