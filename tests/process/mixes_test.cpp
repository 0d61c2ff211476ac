#include <algorithm>
#include <mutex>
#include <set>

#include "tests/process/support/company.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

constexpr double kLatentBound = 1e-4;  // of the single actor's range
constexpr int kActors = 8;

std::vector<Parallelism> mixes() {
  std::vector<Parallelism> all;
  for (int dp = 1; dp <= 3; ++dp) {
    for (int cfg = 1; cfg <= 2; ++cfg) {
      for (int pp = 1; pp <= 4; ++pp) {
        if (dp * cfg * pp <= kActors) all.push_back({.dp = dp, .cfg = cfg, .pp = pp});
      }
    }
  }
  return all;
}

/// Five pictures, so that neither two nor three replicas get equal shares, of two prompts; five
/// token rows.
Submission five_pictures() {
  Submission submission;
  submission.model = checkpoint("tiny-pixart");
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree", "A purple house, 4 cats!", "", "a blue square"};
  request.negative_prompt = "a dog";
  request.height = 80;
  request.width = 48;
  request.steps = 6;
  request.seed = 21;
  request.want_latents = true;
  return submission;
}

Submission one_picture(const Parallelism& degrees) {
  auto submission = five_pictures();
  submission.request.prompts.resize(1);
  submission.parallelism = degrees;
  return submission;
}

void check_report(const json& report, const Submission& submission) {
  const auto& degrees = submission.parallelism;
  const auto world = static_cast<std::size_t>(degrees.dp * degrees.cfg * degrees.pp);
  CHECK(report.at("seed") == submission.request.seed);
  CHECK(report.at("request").at("prompts") == json(submission.request.prompts));
  const auto& plan = report.at("plan");
  CHECK(plan.at("mesh") ==
        json{{"world", world}, {"dp", degrees.dp}, {"cfg", degrees.cfg}, {"pp", degrees.pp}});
  CHECK(plan.at("stages").size() == static_cast<std::size_t>(degrees.pp));
  double phases = 0;
  for (const std::string phase : {"queued", "loading", "text", "denoising", "decoding"}) {
    CAPTURE(phase);
    const double seconds = report.at("seconds").at(phase);
    CHECK(seconds >= 0);
    phases += seconds;
  }
  const auto& seconds = report.at("seconds");
  CHECK(seconds.at("denoising").get<double>() > 0);
  CHECK(seconds.at("per_step").get<double>() ==
        doctest::Approx(seconds.at("denoising").get<double>() / submission.request.steps));
  CHECK(seconds.at("total").get<double>() >= phases - 1e-6);
  REQUIRE(report.at("actors").size() == world);
  std::set<int> ids;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const auto& actor = report.at("actors")[rank];
    CAPTURE(actor.dump());
    CHECK(actor.at("rank") == rank);
    ids.insert(actor.at("actor").get<int>());
    for (const std::string field : {"waiting_seconds", "controller_wait_seconds", "idle_seconds"}) {
      CHECK(actor.at(field).get<double>() >= 0);
    }
    CHECK(actor.at("busy_seconds").get<double>() > 0);
    CHECK(actor.at("denoise_seconds").get<double>() > 0);
    CHECK(actor.at("weight_bytes").get<std::uint64_t>() > 0);
    CHECK(actor.at("kv_bytes").get<std::uint64_t>() > 0);
    CHECK(actor.at("peak_memory_bytes").get<std::uint64_t>() > 1'000'000);
    sent += actor.at("tensor_bytes_sent").get<std::uint64_t>();
    received += actor.at("tensor_bytes_received").get<std::uint64_t>();
  }
  CHECK(ids.size() == world);
  const auto& bytes = report.at("bytes");
  CHECK(bytes.at("tensor_plane") == sent);
  CHECK(sent == received);
  CHECK((sent > 0) == (world > static_cast<std::size_t>(degrees.dp)));
  CHECK(bytes.at("control_plane").get<std::uint64_t>() > 0);
  CHECK(bytes.at("blobs").get<std::uint64_t>() > 0);
}

}  // namespace

TEST_CASE("every exact mix makes the single actor's pictures, in the order of the prompts") {
  auto submission = five_pictures();
  const auto single = company().run(submission);
  std::vector<Bytes> pictures;
  for (const auto& picture : single.pictures)
    pictures.push_back(decode_png(picture.png));
  REQUIRE(pictures.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < i; ++j)
      REQUIRE(level_error(pictures[i], pictures[j]) > 8);
  }
  Worst latents;
  Worst levels;
  for (const auto& degrees : mixes()) {
    const auto name = name_of(degrees);
    CAPTURE(name);
    submission.parallelism = degrees;
    const auto result = company().run(submission);
    const double error = range_error(result.latents.value(), single.latents.value());
    CHECK(error <= kLatentBound);
    latents.see(error, name);
    REQUIRE(result.pictures.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) {
      const auto& png = result.pictures[i].png;
      const int level = level_error(decode_png(png), pictures[i]);
      CHECK(level <= 1);
      levels.see(level, name);
      const auto text = json::parse(png_text(png, "troupe"));
      CHECK(text.at("prompt") == submission.request.prompts[i]);
      CHECK(text.at("image") == i);
    }
    check_report(json::parse(result.report), submission);
  }
  MESSAGE("exact: " << latents.seen << " mixes, latents within " << latents.value << " of range ("
                    << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("several pictures of each prompt are prompt-major whatever the degree") {
  Reference reference("pipeline");
  const auto& of = reference.find("two_by_two");
  const auto expected = reference.floats(of, "latents");
  for (const Parallelism degrees :
       {Parallelism{}, Parallelism{.dp = 2}, Parallelism{.dp = 3}, Parallelism{.dp = 4},
        Parallelism{.dp = 2, .cfg = 2, .pp = 2}}) {
    CAPTURE(name_of(degrees));
    const auto result = company().run(reference.submission(of, degrees));
    CHECK(range_error(result.latents.value(), expected) <= kLatentBound);
    REQUIRE(result.pictures.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto picture = picture_of(reference.bytes(of, "image"), static_cast<std::int64_t>(i));
      CHECK(level_error(decode_png(result.pictures[i].png), picture) <= 1);
      const auto text = json::parse(png_text(result.pictures[i].png, "troupe"));
      CHECK(text.at("prompt") == of.at("prompts")[i / 2]);
    }
  }
}

TEST_CASE("without guidance, and with micro-conditions, in stages too") {
  Reference reference("pipeline");
  for (const std::string name : {"no_guidance", "ms", "ms_uneven", "long_prompt", "third_order"}) {
    CAPTURE(name);
    const auto& of = reference.find(name);
    const auto expected = reference.floats(of, "latents");
    const int cfg = of.at("guidance").get<double>() > 1 ? 2 : 1;
    // The fixture with micro-conditions may have fewer blocks, but no less than two.
    const auto result = company().run(reference.submission(of, {.dp = 1, .cfg = cfg, .pp = 2}));
    CHECK(range_error(result.latents.value(), expected) <= kLatentBound);
  }
}

TEST_CASE("degrees that do not fit are refused before anything loads") {
  auto submission = one_picture({.dp = 1, .cfg = 2, .pp = 1});
  submission.request.guidance_scale = 1;
  CHECK(company().refusal(submission).what.find("cfg is 2") != std::string::npos);
  submission = one_picture({.dp = 2});
  CHECK(company().refusal(submission).what.find("dp is 2") != std::string::npos);
  submission = one_picture({.dp = 1, .cfg = 1, .pp = 6});
  CHECK(company().refusal(submission).what.find("6") != std::string::npos);
  submission = five_pictures();
  submission.parallelism = {.dp = 5, .cfg = 2, .pp = 1};
  CHECK(company().refusal(submission).what.find("10") != std::string::npos);
}

TEST_CASE("progress comes in order and misses no step") {
  for (const Parallelism degrees : {Parallelism{}, Parallelism{.dp = 1, .cfg = 2, .pp = 2}}) {
    CAPTURE(name_of(degrees));
    auto submission = one_picture(degrees);
    submission.request.steps = 9;
    std::mutex mutex;
    std::vector<Progress> seen;
    const auto result = company().run(submission, [&](const Progress& progress) {
      const std::lock_guard lock(mutex);
      seen.push_back(progress);
    });
    const std::vector<std::string> phases = {"queued", "loading", "text", "denoising", "decoding"};
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
    for (const Parallelism degrees : {Parallelism{}, Parallelism{.dp = 1, .cfg = 2, .pp = 3}}) {
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
      const auto result = company().run(submission, [&](const Progress& progress) {
        if (progress.latents) passing.push_back(*progress.latents);
      });
      REQUIRE(passing.size() == 3);
      CHECK(passing.back().shape == std::vector<std::int64_t>{1, 4, 10, 6});
      CHECK(passing.back().data == result.latents.value().data);
      CHECK(range_error(passing.front(), passing.back()) > 1e-2);

      request.progress_content = "preview";
      request.progress_interval = 3;
      std::vector<std::string> previews;
      const auto again = company().run(submission, [&](const Progress& progress) {
        if (!progress.preview_png.empty()) previews.push_back(progress.preview_png);
      });
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
  const auto result = company().run(submission, [&](const Progress& progress) {
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
    company().run(submission, [&](const Progress& progress) {
      if (!progress.preview_png.empty()) previews[dp - 1].push_back(progress.preview_png);
    });
  }
  REQUIRE(previews[0].size() == 2);
  REQUIRE(previews[1].size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(level_error(decode_png(previews[0][i]), decode_png(previews[1][i])) <= 1);
  }
}

TEST_CASE("jobs of different degrees run side by side and one after another") {
  const auto expected = company().run(one_picture({})).latents.value();
  std::vector<std::uint64_t> jobs;
  for (int i = 0; i < 12; ++i) {
    const Parallelism degrees = {.dp = 1, .cfg = 1 + i % 2, .pp = 1 + i % 3};
    const auto job = company().client().submit(one_picture(degrees));
    REQUIRE(job.ok());
    jobs.push_back(job.value());
  }
  for (const auto job : jobs) {
    const auto result = company().client().wait(job, std::chrono::seconds(120));
    REQUIRE_MESSAGE(result.ok(), result.error().what);
    CHECK(range_error(result.value().latents.value(), expected) <= kLatentBound);
  }
}
