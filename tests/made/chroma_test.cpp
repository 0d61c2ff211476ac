#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kChromaBound = 1e-5;  // of the reference's range, or of the single actor's

/// Gives a case the LoRA and the picture that it names.
void add_files(const nlohmann::json& of, Submission& submission) {
  auto& request = submission.request;
  if (of.contains("lora"))
    request.loras = {{(kMade / of.at("lora").get<std::string>()).string(), 1}};
  if (!of.contains("init_image")) return;
  request.init_image =
      read_all(TROUPE_SOURCE_DIR "/tests/fixtures/" + of.at("init_image").get<std::string>());
  request.strength = of.at("strength").get<double>();
}

}  // namespace

TEST_CASE("Chroma's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("chroma");
  Worst latents, levels;
  check_pictures(reference, kChromaBound, latents, levels, add_files);
  CHECK(latents.seen == 11);
  CHECK(levels.seen == 6);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("Chroma makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("chroma");
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 5},
                                          {.ulysses = 3},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.tp = 4},
                                          {.ulysses = 2, .ring = 2},
                                          {.dp = 2, .pp = 3},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.cfg = 2, .ring = 3},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  check_degrees(reference, "chroma_wide", mixes, worst, "a tree by the river");
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Chroma by patches equals the oracle, texts of different length among them") {
  if (lacks_made_fixtures()) return;
  Reference reference("chroma_patches");
  Worst worst;
  check_oracle(reference, worst);
  CHECK(worst.seen == 28);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Chroma is streamed, rounded to 16 and to 8 bits and with a LoRA at several degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("chroma");
  Worst half;
  check_half(reference, "chroma_plain", "bfloat16", 0.05, half);
  check_half(reference, "chroma_plain", "float16", 0.01, half);
  MESSAGE("within " << half.value << " of range");
  const auto error_of = [&](const char* name, auto change) {
    const auto& of = reference.find(name);
    auto submission = reference.submission(of, {.pp = 2, .tp = 2});
    add_files(of, submission);
    change(submission.request);
    return range_error(shared_cluster().run(submission).latents.value(),
                       reference.floats(of, "latents"));
  };
  CHECK(error_of("chroma_plain", [](auto& of) { of.offload = "blocks"; }) <= kChromaBound);
  CHECK(error_of("chroma_lora", [](auto&) {}) <= kChromaBound);
  // Only padding that nobody attends to.
  CHECK(error_of("chroma_plain", [](auto& of) { of.max_sequence_length += 13; }) <= kChromaBound);
  auto eight = reference.submission(reference.find("chroma_plain"));
  eight.request.weight_dtype = "int8";
  const auto single = shared_cluster().run(eight).latents.value();
  eight.parallelism = {.tp = 2};
  const Foreseen foreseen(eight);
  const auto several = shared_cluster().run(eight);
  CHECK(range_error(several.latents.value(), single) <= kChromaBound);
  check_sent(nlohmann::json::parse(several.report), foreseen);
}

TEST_CASE("plans know Chroma's weights, K,V and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  Reference reference("chroma");
  check_foreseen(reference, "chroma_wide");
}
