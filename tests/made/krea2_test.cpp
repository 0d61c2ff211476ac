#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kKrea2Bound = 1e-5;  // of the reference's range, or of the single actor's

}  // namespace

TEST_CASE("Krea 2's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("krea2");
  Worst latents, levels;
  check_pictures(reference, kKrea2Bound, latents, levels, add_made_lora);
  CHECK(latents.seen == 11);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("Krea 2 makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("krea2");
  // Three heads of queries share one of keys and values, of six and two: shards of tp 4 have parts
  // of both.
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 3},
                                          {.ulysses = 3},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.tp = 4},
                                          {.ulysses = 2, .ring = 2},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  check_degrees(reference, "krea2_wide", mixes, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Krea 2 by patches equals the oracle, texts of different length among them") {
  if (lacks_made_fixtures()) return;
  Reference reference("krea2_patches");
  Worst worst;
  check_oracle(reference, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Krea 2 is streamed, rounded to 16 and to 8 bits and with a LoRA at several degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("krea2");
  const auto error_of = [&](const char* name, auto change) {
    const auto& of = reference.find(name);
    auto submission = reference.submission(of, {.pp = 2, .tp = 2});
    add_made_lora(of, submission);
    change(submission.request);
    return range_error(shared_cluster().run(submission).latents.value(),
                       reference.floats(of, "latents"));
  };
  CHECK(error_of("krea2_plain", [](auto& of) { of.offload = "blocks"; }) <= kKrea2Bound);
  CHECK(error_of("krea2_lora", [](auto&) {}) <= kKrea2Bound);
  // Guidance of 3.5 multiplies the branches' rounding by 4.5 and by 3.5: it counts from the text's
  // own prediction.
  CHECK(error_of("krea2_plain", [](auto& of) { of.dtype = "bfloat16"; }) <= 0.1);
  CHECK(error_of("krea2_plain", [](auto& of) { of.dtype = "float16"; }) <= 0.01);
  auto eight = reference.submission(reference.find("krea2_plain"));
  eight.request.weight_dtype = "int8";
  const auto single = shared_cluster().run(eight).latents.value();
  eight.parallelism = {.tp = 4};
  const Foreseen foreseen(eight);
  const auto several = shared_cluster().run(eight);
  CHECK(range_error(several.latents.value(), single) <= kKrea2Bound);
  check_sent(nlohmann::json::parse(several.report), foreseen);
}

TEST_CASE("plans know Krea 2's weights, K,V and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  Reference reference("krea2");
  check_foreseen(reference, "krea2_wide");
}
