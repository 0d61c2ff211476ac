#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kFlux2Bound = 1e-5;  // of the reference's range, or of the single actor's

/// Gives a case the LoRA that it names, and tiles.
void add_extras(const nlohmann::json& of, Submission& submission) {
  submission.request.vae_tiling = of.value("tiled", false);
  add_made_lora(of, submission);
}

}  // namespace

TEST_CASE("FLUX.2-klein's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux2");
  Worst latents, levels;
  check_pictures(reference, kFlux2Bound, latents, levels, add_extras);
  CHECK(latents.seen == 19);
  CHECK(levels.seen == 11);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("FLUX.2-klein makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux2");
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 3},
                                          {.ulysses = 3},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.tp = 4},
                                          {.ulysses = 2, .ring = 2},
                                          {.dp = 2, .pp = 2, .ulysses = 2},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  check_degrees(reference, "flux2_wide", mixes, worst, "a tree by the river");
  check_degrees(reference, "flux2_edit_two", mixes, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("FLUX.2-klein by patches equals the oracle") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux2_patches");
  Worst worst;
  check_oracle(reference, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE(
    "FLUX.2-klein is streamed, rounded to 16 and to 8 bits and with a LoRA at several degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux2");
  const auto error_of = [&](const char* name, auto change) {
    const auto& of = reference.find(name);
    auto submission = reference.submission(of, {.pp = 2, .tp = 2});
    add_extras(of, submission);
    change(submission.request);
    return range_error(shared_cluster().run(submission).latents.value(),
                       reference.floats(of, "latents"));
  };
  CHECK(error_of("flux2_plain", [](auto& of) { of.offload = "blocks"; }) <= kFlux2Bound);
  CHECK(error_of("flux2_lora", [](auto&) {}) <= kFlux2Bound);
  CHECK(error_of("flux2_plain", [](auto& of) { of.dtype = "bfloat16"; }) <= 0.05);
  CHECK(error_of("flux2_plain", [](auto& of) { of.dtype = "float16"; }) <= 0.01);
  auto eight = reference.submission(reference.find("flux2_plain"));
  eight.request.weight_dtype = "int8";
  const auto single = shared_cluster().run(eight).latents.value();
  eight.parallelism = {.tp = 2};
  const Foreseen foreseen(eight);
  const auto several = shared_cluster().run(eight);
  CHECK(range_error(several.latents.value(), single) <= kFlux2Bound);
  check_sent(nlohmann::json::parse(several.report), foreseen);
}

TEST_CASE("plans know FLUX.2-klein's weights, K,V and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux2");
  check_foreseen(reference, "flux2_wide");
  check_foreseen(reference, "flux2_edit_two");
}

TEST_CASE("FLUX.2-klein's patched latents are decoded by any number of actors") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux2");
  const auto& plain = reference.find("flux2_plain");
  for (const int vae : {2, 3}) {
    CAPTURE(vae);
    auto submission = reference.submission(plain, {.pp = 3, .vae = vae});
    const Foreseen foreseen(submission);
    const auto result = shared_cluster().run(submission);
    CHECK(level_error(decode_png(result.pictures.at(0).png),
                      picture_of(reference.bytes(plain, "image"), 0)) <= kLevelBound);
    check_sent(nlohmann::json::parse(result.report), foreseen);
  }
}
