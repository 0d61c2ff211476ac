#include <nlohmann/json.hpp>

#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// What a picture to begin with, its mask and guidance rescale add to the bytes that actors send.

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("what a picture to begin with and guidance rescale send is what the plan says") {
  Reference reference("guidance_rescale");
  auto submission = submission_of(reference, reference.find("hunyuan_all"));
  auto& request = submission.request;
  request.init_image = read_all(kFixtures + "init/picture.png");
  request.strength = 0.8;
  struct Way {
    const char* method;
    int patches;
    Parallelism degrees;
  };
  for (const Way& way : {Way{"exact", 1, {.pp = 2, .ring = 2, .tp = 2}},
                         Way{"exact", 1, {.dp = 2, .cfg = 2, .ulysses = 2}},
                         Way{"pipefusion", 3, {.pp = 2, .ulysses = 3}},
                         Way{"distrifusion", 3, {.cfg = 2, .ring = 2, .tp = 2}}}) {
    request.method = way.method;
    request.num_pipeline_patch = way.patches;
    request.mask_image = way.patches > 1 ? read_all(kFixtures + "init/mask.png") : "";
    submission.parallelism = way.degrees;
    CAPTURE(way.method);
    CAPTURE(name_of(way.degrees));
    const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
    check_sent(report, Foreseen(submission));
  }
}

TEST_CASE("what blocks leave for later ones goes straight to the stages that take it up") {
  Reference reference("families");
  auto submission = submission_of(reference, reference.find("hunyuan_two"));
  auto& request = submission.request;
  struct Way {
    const char* method;
    int patches;
    Parallelism degrees;
    int senders;
  };
  // Six blocks: the first leaves for the last, the second for the last but one. Counted are
  // senders.
  for (const Way& way : {Way{"exact", 1, {.pp = 2}, 0}, Way{"exact", 1, {.pp = 6}, 2},
                         Way{"exact", 1, {.cfg = 2, .pp = 3, .stages = {1, 3, 2}}, 2},
                         Way{"exact", 1, {.pp = 4, .tp = 2, .stages = {2, 1, 1, 2}}, 2},
                         Way{"pipefusion", 3, {.pp = 4, .ulysses = 2}, 2},
                         Way{"pipefusion", 2, {.dp = 2, .pp = 3}, 2},
                         Way{"distrifusion", 3, {.pp = 3, .ring = 2}, 2}}) {
    request.method = way.method;
    request.num_pipeline_patch = way.patches;
    submission.parallelism = way.degrees;
    CAPTURE(way.method);
    CAPTURE(name_of(way.degrees));
    const Foreseen foreseen(submission);
    int senders = 0;
    for (const auto& rank : foreseen.traffic)
      senders += rank.of("skip") > 0 ? 1 : 0;
    CHECK(senders == way.senders);
    check_sent(nlohmann::json::parse(shared_cluster().run(submission).report), foreseen);
  }
}

TEST_CASE("so it is for a U-Net, in bytes and by layer") {
  Reference reference("guidance_rescale");
  auto submission = submission_of(reference, reference.find("sdxl"));
  auto& request = submission.request;
  request.init_image = read_all(kFixtures + "init/picture.png");
  request.strength = 0.8;
  request.images_per_prompt = 2;
  for (const Parallelism& mix : {Parallelism{.ulysses = 3}, Parallelism{.cfg = 2, .ring = 2},
                                 Parallelism{.dp = 2, .ring = 2}}) {
    for (const int patches : {1, 3}) {
      request.method = patches == 1 ? "exact" : "distrifusion";
      request.num_pipeline_patch = patches;
      request.mask_image = patches > 1 ? read_all(kFixtures + "init/mask.png") : "";
      submission.parallelism = mix;
      CAPTURE(name_of(mix));
      CAPTURE(patches);
      const Foreseen foreseen(submission);
      auto plain = submission;
      plain.request.guidance_rescale = 0;
      CHECK(foreseen.traffic[0].of("stage") > Foreseen(plain).traffic[0].of("stage"));
      const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
      check_sent(report, foreseen);
      check_sent_by_layer(report, foreseen);
    }
  }
}
