#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kQwenImageBound = 1e-5;  // of the reference's range

}  // namespace

TEST_CASE("Qwen-Image's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_image");
  Worst latents;
  Worst levels;
  check_pictures(reference, kQwenImageBound, latents, levels);
  CHECK(latents.seen == 8);
  CHECK(levels.seen == 5);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("Qwen-Image makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_image");
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 3},
                                          {.ulysses = 2},
                                          {.ulysses = 3},
                                          {.ring = 2},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.tp = 4},
                                          {.dp = 2, .tp = 4},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.cfg = 2, .ring = 3},
                                          {.dp = 2, .pp = 2, .ulysses = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  check_degrees(reference, "qwen-image_wide", mixes, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Qwen-Image by patches equals the oracle, texts of different length among them") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_image_patches");
  Worst worst;
  check_oracle(reference, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Qwen-Image's half precision stays near diffusers' float32") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_image");
  Worst worst;
  check_half(reference, "qwen-image_plain", "bfloat16", 0.05, worst);
  check_half(reference, "qwen-image_plain", "float16", 0.01, worst);
  MESSAGE("within " << worst.value << " of range");
}

TEST_CASE("plans know Qwen-Image's weights, K,V and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_image");
  check_foreseen(reference, "qwen-image_wide");
}

TEST_CASE("Qwen-Image guides only with a negative prompt, and any number of actors decodes") {
  if (lacks_made_fixtures()) return;
  Reference reference("qwen_image");
  const auto& of = reference.find("qwen-image_no_negative");
  auto submission = reference.submission(of);
  std::string warnings;
  const auto on_progress = [&](const Progress& progress) {
    for (const auto& warning : progress.warnings)
      warnings += warning + "\n";
  };
  const auto without = shared_cluster().run(submission, on_progress).latents.value();
  CHECK(warnings.find("guides only where a negative prompt is given") != std::string::npos);
  CHECK(warnings.find("the vision tower in text_encoder is not read") != std::string::npos);
  submission.request.negative_prompt = "";
  const auto guided = shared_cluster().run(submission).latents.value();
  CHECK(range_error(guided, without) > 1e-2);
  submission.request.guidance_scale = 1;
  CHECK(range_error(shared_cluster().run(submission).latents.value(), without) == 0);

  const auto& plain = reference.find("qwen-image_plain");
  for (const int vae : {1, 2, 3}) {
    CAPTURE(vae);
    const auto result = shared_cluster().run(reference.submission(plain, {.pp = 3, .vae = vae}));
    CHECK(level_error(decode_png(result.pictures.at(0).png),
                      picture_of(reference.bytes(plain, "image"), 0)) <= kLevelBound);
  }
  submission = reference.submission(plain);
  submission.request.max_sequence_length += 13;  // only padding
  CHECK(range_error(shared_cluster().run(submission).latents.value(),
                    reference.floats(plain, "latents")) <= kQwenImageBound);
}
