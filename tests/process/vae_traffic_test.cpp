#include <nlohmann/json.hpp>

#include "tests/process/support/foreseen.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/models.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

// What those who decode together send one another, and latents on their way to them, is what the
// plan says. shared_encoding_test.cpp has the same of a picture to begin with.

using namespace troupe;
using namespace troupe::testing;

namespace {

std::uint64_t sent_of(const Foreseen& foreseen, const char* role) {
  std::uint64_t sum = 0;
  for (const auto& rank : foreseen.traffic)
    sum += rank.of(role);
  return sum;
}

void is_foreseen(const Submission& submission) {
  const Foreseen foreseen(submission);
  CHECK(sent_of(foreseen, "vae") > 0);
  CHECK(sent_of(foreseen, "rows") > 0);
  check_sent(nlohmann::json::parse(shared_cluster().run(submission).report), foreseen);
}

/// 14 × 10 latents of two prompts' pictures.
Submission pictures(const char* dtype) {
  Submission submission;
  submission.model = checkpoint("tiny-pixart");
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree", "a dog"};
  request.height = 112;
  request.width = 80;
  request.steps = 2;
  request.dtype = dtype;
  return submission;
}

}  // namespace

TEST_CASE("decoders send what the plan says, by rows and by tiles, in every type") {
  const Parallelism places[] = {{.cfg = 2, .pp = 2, .vae = 2},
                                {.pp = 2, .ring = 3, .vae = 3},
                                {.dp = 2, .ulysses = 2, .tp = 2, .vae = 4},
                                {.pp = 3, .ulysses = 2, .vae = 6}};
  const char* types[] = {"float32", "bfloat16", "float32", "float16"};
  int type = 0;
  for (const auto& place : places) {
    for (const bool tiled : {false, true}) {
      auto submission = pictures(types[type]);
      submission.request.vae_tiling = tiled;
      submission.parallelism = place;
      CAPTURE(name_of(place));
      CAPTURE(tiled);
      CAPTURE(types[type]);
      is_foreseen(submission);
    }
    ++type;
  }
}

TEST_CASE("previews and latents of steps send their rows to the first decoder") {
  auto submission = pictures("float32");
  submission.request.steps = 5;
  submission.request.progress_interval = 2;
  submission.parallelism = {.pp = 2, .ulysses = 2, .ring = 2, .vae = 3};
  std::uint64_t before = sent_of(Foreseen(submission), "rows");
  for (const char* content : {"latents", "preview"}) {
    CAPTURE(content);
    submission.request.progress_content = content;
    CHECK(sent_of(Foreseen(submission), "rows") > before);
    is_foreseen(submission);
  }
  submission.request.method = "pipefusion";
  submission.request.num_pipeline_patch = 3;
  is_foreseen(submission);
}

TEST_CASE("so it is for a U-Net's pictures and for videos") {
  Reference unets("init_image");
  auto submission = submission_of(unets, unets.find("sdxl"), {.cfg = 2, .ring = 2, .vae = 3});
  submission.request.images_per_prompt = 2;
  is_foreseen(submission);

  Reference videos("wan");
  for (const auto& [name, place] :
       {std::pair{"wan_plain", Parallelism{.pp = 3, .vae = 3}},
        std::pair{"wan_two", Parallelism{.dp = 2, .ulysses = 2, .vae = 2}},
        std::pair{"wan_long", Parallelism{.cfg = 2, .ring = 2, .vae = 4}},
        std::pair{"wan_picture", Parallelism{.pp = 2, .vae = 2}}}) {
    CAPTURE(name);
    auto video = videos.submission(videos.find(name), place);
    const Foreseen foreseen(video);
    check_sent(nlohmann::json::parse(shared_cluster().run(video).report), foreseen);
    CHECK(sent_of(foreseen, "vae") > 0);
  }
}
