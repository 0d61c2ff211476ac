#include <algorithm>
#include <mutex>

#include "tests/process/support/compare.h"
#include "tests/process/support/five_pictures.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("progress comes in order and misses no step") {
  for (const Parallelism& degrees : {Parallelism{}, Parallelism{.dp = 1, .cfg = 2, .pp = 2}}) {
    CAPTURE(name_of(degrees));
    auto submission = one_picture(degrees);
    submission.request.steps = 9;
    std::mutex mutex;
    std::vector<Progress> seen;
    const auto result = shared_cluster().run(submission, [&](const Progress& progress) {
      const std::lock_guard lock(mutex);
      seen.push_back(progress);
    });
    using enum JobPhase;
    const std::vector<JobPhase> phases = {queued, loading, text, denoising, decoding};
    std::ptrdiff_t phase = 0;
    int step = 0;
    const std::lock_guard lock(mutex);
    for (const auto& progress : seen) {
      CAPTURE(progress.phase);
      CAPTURE(progress.step);
      CHECK(progress.job == result.job);
      CHECK(progress.steps == 9);
      CHECK(progress.seconds_per_step >= 0);
      const auto now = std::find(phases.begin(), phases.end(), progress.phase) - phases.begin();
      CHECK(now >= phase);
      CHECK(now < 5);
      phase = now;
      CHECK(progress.step >= step);
      CHECK(progress.step <= step + 1);
      step = progress.step;
    }
    CHECK(step == 9);
    CHECK(phase == 4);
  }
}

TEST_CASE("latents and previews of a job under way") {
  for (const bool stale : {false, true}) {
    for (const Parallelism& degrees : {Parallelism{}, Parallelism{.dp = 1, .cfg = 2, .pp = 3}}) {
      CAPTURE(stale);
      CAPTURE(name_of(degrees));
      auto submission = one_picture(degrees);
      auto& request = submission.request;
      request.steps = 6;
      if (stale) {
        request.method = "pipefusion";
        request.num_pipeline_patch = 3;
      }
      request.progress_content = "latents";
      request.progress_interval = 2;
      std::vector<Latents> passing;
      const auto result = shared_cluster().run(submission, [&](const Progress& progress) {
        if (progress.latents) passing.push_back(*progress.latents);
      });
      REQUIRE(passing.size() == 3);
      CHECK(passing.back().shape == std::vector<std::int64_t>{1, 4, 10, 6});
      CHECK(passing.back().data == result.latents.value().data);
      CHECK(range_error(passing.front(), passing.back()) > 1e-2);

      request.progress_content = "preview";
      request.progress_interval = 3;
      std::vector<std::string> previews;
      std::vector<int> steps;
      const auto again = shared_cluster().run(submission, [&](const Progress& progress) {
        if (progress.preview_png.empty()) return;
        previews.push_back(progress.preview_png);
        steps.push_back(progress.interim_step);
      });
      CHECK(steps == std::vector{3, 6});
      REQUIRE(previews.size() == 2);
      for (const auto& png : previews) {
        const auto picture = decode_png(png);
        CHECK(picture.shape.at(0) >= 8);
        CHECK(picture.shape.at(0) < 80);
        CHECK(picture.shape.at(1) < 48);
      }
      CHECK(again.latents.value().data == result.latents.value().data);  // looking changes nothing
    }
  }
}

TEST_CASE("replicas' latents come together, the preview is the first picture's") {
  auto submission = five_pictures();
  submission.parallelism = {.dp = 2, .cfg = 1, .pp = 2};
  auto& request = submission.request;
  request.progress_interval = 3;
  request.progress_content = "latents";
  std::vector<Latents> passing;
  const auto result = shared_cluster().run(submission, [&](const Progress& progress) {
    if (progress.latents) passing.push_back(*progress.latents);
  });
  REQUIRE(passing.size() == 2);
  for (const auto& latents : passing) {
    CHECK(latents.shape == std::vector<std::int64_t>{5, 4, 10, 6});
  }
  CHECK(passing.back().data == result.latents.value().data);

  std::vector<std::string> previews[2];
  for (const int dp : {1, 2}) {
    submission.parallelism.dp = dp;
    request.progress_content = "preview";
    shared_cluster().run(submission, [&](const Progress& progress) {
      if (!progress.preview_png.empty()) previews[dp - 1].push_back(progress.preview_png);
    });
  }
  REQUIRE(previews[0].size() == 2);
  REQUIRE(previews[1].size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(level_error(decode_png(previews[0][i]), decode_png(previews[1][i])) <= 1);
  }
}
