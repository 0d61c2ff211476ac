#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kWan22Bound = 1e-5;  // of the reference's range

}  // namespace

TEST_CASE("Wan 2.2's videos are those of WanPipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22");
  Worst latents, levels;
  check_pictures(reference, kWan22Bound, latents, levels);
  CHECK(latents.seen == 7);
  CHECK(levels.seen == 6);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), videos within " << levels.value << " levels");
}

TEST_CASE("Wan 2.2 makes one video at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22");
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 3},
                                          {.ulysses = 3},
                                          {.ring = 2},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.tp = 4},
                                          {.dp = 2, .pp = 3},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  check_degrees(reference, "wan22_plain", mixes, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("any number of actors decodes Wan 2.2's frames, and plans know what they send") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22");
  const auto& of = reference.find("wan22_plain");
  for (const int vae : {1, 2, 3}) {
    CAPTURE(vae);
    const auto submission = reference.submission(of, {.pp = 3, .vae = vae});
    const Foreseen foreseen(submission);
    const auto result = shared_cluster().run(submission);
    CHECK(level_error(tall_picture(result.pictures.at(0).png),
                      picture_of(reference.bytes(of, "image"), 0)) <= kLevelBound);
    check_sent(nlohmann::json::parse(result.report), foreseen);
  }
}

TEST_CASE("Wan 2.2's half precision stays near diffusers' float32, and plans know its weights") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22");
  Worst worst;
  check_half(reference, "wan22_plain", "bfloat16", 0.05, worst);
  check_half(reference, "wan22_plain", "float16", 0.01, worst);
  MESSAGE("within " << worst.value << " of range");
  check_foreseen(reference, "wan22_plain");
}
