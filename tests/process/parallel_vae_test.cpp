#include "tests/process/support/compare.h"
#include "tests/process/support/models.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// 14 × 10 latents: rows are uneven over 3 and 4, and the tiny decoder's tiles have 8.
Submission two_pictures(bool tiled) {
  Submission submission;
  submission.model = checkpoint("tiny-pixart");
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree"};
  request.height = 112;
  request.width = 80;
  request.steps = 3;
  request.seed = 3;
  request.vae_tiling = tiled;
  request.want_latents = true;
  return submission;
}

std::vector<Bytes> pictures_of(const JobResult& result) {
  std::vector<Bytes> pictures;
  for (const auto& picture : result.pictures)
    pictures.push_back(decode_png(picture.png));
  return pictures;
}

int worst_level(const std::vector<Bytes>& actual, const std::vector<Bytes>& expected) {
  if (actual.size() != expected.size()) return 256;
  int worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i)
    worst = std::max(worst, level_error(actual[i], expected[i]));
  return worst;
}

const std::vector<Parallelism>& places() {
  static const std::vector<Parallelism> places = {{.cfg = 2, .pp = 2},
                                                  {.ulysses = 2, .ring = 2},
                                                  {.tp = 4},
                                                  {.pp = 2, .ring = 3},
                                                  {.dp = 2, .cfg = 2, .ulysses = 2}};
  return places;
}

}  // namespace

TEST_CASE("whoever decodes together makes the pictures of one, from the same latents") {
  for (const bool tiled : {false, true}) {
    auto submission = two_pictures(tiled);
    const auto single = shared_cluster().run(submission);
    const auto expected = pictures_of(single);
    Worst levels;
    for (const auto& place : places()) {
      std::vector<float> latents;
      for (int decoders = 1; decoders <= place.world() / place.dp; ++decoders) {
        submission.parallelism = place;
        submission.parallelism.vae = decoders;
        const auto where = name_of(submission.parallelism) + (tiled ? " tiled" : "");
        CAPTURE(where);
        const auto result = shared_cluster().run(submission);
        const int level = worst_level(pictures_of(result), expected);
        CHECK(level <= 1);
        levels.see(level, where);
        CHECK(range_error(result.latents.value(), single.latents.value()) <= 1e-5);
        if (latents.empty()) latents = result.latents->data;
        CHECK(result.latents->data == latents);
      }
    }
    MESSAGE(levels.seen << std::string(tiled ? " tiled" : "") << " runs within " << levels.value
                        << " levels of one decoder (" << levels.where << ")");
  }
}

TEST_CASE("tiles make another picture of the same latents") {
  const auto whole = shared_cluster().run(two_pictures(false));
  const auto tiled = shared_cluster().run(two_pictures(true));
  CHECK(tiled.latents->data == whole.latents->data);
  CHECK(worst_level(pictures_of(tiled), pictures_of(whole)) > 1);
}

TEST_CASE("previews of a job whose decoders are several") {
  auto submission = two_pictures(false);
  submission.parallelism = {.ulysses = 2, .ring = 2, .vae = 3};
  submission.request.progress_interval = 1;
  submission.request.progress_content = "preview";
  int previews = 0;
  const auto result = shared_cluster().run(submission, [&](const Progress& progress) {
    if (!progress.preview_png.empty()) ++previews;
  });
  CHECK(previews == 3);
  const auto expected = pictures_of(shared_cluster().run(two_pictures(false)));
  CHECK(worst_level(pictures_of(result), expected) <= 1);
}

TEST_CASE("more decoders than actors of a replica, or than rows, are refused") {
  auto submission = two_pictures(false);
  submission.parallelism = {.dp = 2, .pp = 2, .vae = 3};
  CHECK(shared_cluster().refusal(submission).what.find("`vae` is 3") != std::string::npos);
  submission.request.height = 16;
  submission.parallelism = {.pp = 3, .vae = 3};
  CHECK(shared_cluster().refusal(submission).what.find("only 2 rows") != std::string::npos);
}
