#include <nlohmann/json.hpp>

#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// A picture to begin with, encoded by those who decode together.

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Family {
  const char* part;
  const char* name;
  Parallelism place;  // of four actors
  std::vector<int> encoders;
};

const Family kFamilies[] = {{"init_image", "sd3", {.pp = 2, .ulysses = 2}, {2, 3, 4}},
                            {"init_image", "flux", {.ring = 2, .tp = 2}, {3}},
                            {"init_image", "sdxl", {.cfg = 2, .ring = 2}, {2, 3, 4}},
                            {"init_image", "sd15_rounds", {.ulysses = 4}, {4}},
                            {"lora", "pixart", {.cfg = 2, .pp = 2}, {3}},
                            {"lora", "hunyuan", {.pp = 4}, {4}}};

/// 14 × 10 latents: rows are uneven over 3 and 4, and tiles have 8.
Submission beginning_with_a_picture(const Family& family) {
  Reference reference(family.part);
  auto submission = submission_of(reference, reference.find(family.name), family.place);
  auto& request = submission.request;
  request.init_image = read_all(kFixtures + "init/picture.png");
  request.loras.clear();
  request.height = 112;
  request.width = 80;
  request.sampler.clear();
  request.steps = 4;
  request.strength = 0.5;  // flow models forget the picture at 1
  request.want_latents = true;
  return submission;
}

struct Outcome {
  Latents latents;
  Bytes picture;
};

Outcome outcome_of(const Submission& submission) {
  const auto result = shared_cluster().run(submission);
  check_sent(nlohmann::json::parse(result.report), Foreseen(submission));
  return {result.latents.value(), decode_png(result.pictures.at(0).png)};
}

}  // namespace

TEST_CASE("however many encode a picture together, the job begins with the latents of one") {
  Worst latents;
  Worst levels;
  for (const auto& family : kFamilies) {
    auto submission = beginning_with_a_picture(family);
    const auto one = outcome_of(submission);
    for (const int encoders : family.encoders) {
      submission.parallelism.vae = encoders;
      const auto where = std::string(family.name) + " at " + name_of(submission.parallelism);
      CAPTURE(where);
      const auto many = outcome_of(submission);
      const double error = range_error(many.latents, one.latents);
      const int level = level_error(many.picture, one.picture);
      CHECK(error <= 1e-5);
      CHECK(level <= 1);
      latents.see(error, where);
      levels.see(level, where);
    }
  }
  MESSAGE(latents.seen << " runs: latents within " << latents.value << " of one encoder's ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("tiles that are shared out encode to the same bits, and to other latents than rows") {
  auto submission = beginning_with_a_picture(kFamilies[0]);
  const auto whole = outcome_of(submission);
  submission.request.vae_tiling = true;
  const auto one = outcome_of(submission);
  CHECK(range_error(one.latents, whole.latents) > 1e-4);
  for (const int encoders : {2, 3, 4}) {
    CAPTURE(encoders);
    submission.parallelism.vae = encoders;
    const auto many = outcome_of(submission);
    CHECK(many.latents.data == one.latents.data);
    CHECK(many.picture.data == one.picture.data);
  }
}
