#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kLatentBound = 1e-4;   // of the reference's range
constexpr double kDegreesBound = 1e-5;  // of the range of the single actor's latents
constexpr int kLevelBound = 1;          // of 255

}  // namespace

TEST_CASE("videos are those of WanPipeline in diffusers") {
  Reference reference("wan");
  Worst latents, levels;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(reference.submission(of));
    REQUIRE(result.latents);
    const double error = range_error(*result.latents, reference.floats(of, "latents"));
    CHECK(error <= kLatentBound);
    latents.see(error, name);
    if (!of.at("image").get<bool>()) continue;
    for (std::size_t i = 0; i < result.pictures.size(); ++i) {
      const auto clip = tall_picture(result.pictures[i].png);
      CHECK(clip.shape[0] == of.at("num_frames").get<int>() * of.at("height").get<int>());
      const int level = level_error(clip, picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= kLevelBound);
      levels.see(level, name);
    }
  }
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), " << levels.seen << " videos within " << levels.value
                       << " levels");
}

TEST_CASE("a video is the same at any degrees, exact and by patches") {
  Reference reference("wan");
  struct Way {
    const char* method;
    const char* kv;
    int patches;
  };
  // Nine rows of tokens, three a frame: patches of whole frames, of parts of them, and across.
  const Way ways[] = {{"exact", "stale", 1},
                      {"pipefusion", "stale", 3},
                      {"pipefusion", "predict", 4},
                      {"distrifusion", "stale", 3},
                      {"distrifusion", "predict", 2}};
  const Parallelism mixes[] = {{.pp = 2},
                               {.ulysses = 2},
                               {.tp = 2},
                               {.dp = 2, .cfg = 2},
                               {.ring = 2},
                               {.dp = 2, .ulysses = 3},
                               {.pp = 3, .vae = 2},
                               {.dp = 2, .tp = 4},
                               {.cfg = 2, .pp = 2, .ulysses = 2},
                               {.pp = 2, .ring = 2, .tp = 2, .vae = 3}};
  Worst worst, levels;
  std::size_t turn = 0;
  for (const auto& way : ways) {
    auto submission = reference.submission(reference.find("wan_plain"));
    auto& request = submission.request;
    request.prompts.push_back("a tree");
    request.method = way.method;
    request.kv = way.kv;
    request.num_pipeline_patch = way.patches;
    const auto single = shared_cluster().run(submission);
    const std::size_t stride = way.patches == 1 || full_matrix() ? 1 : 3;
    for (std::size_t i = stride == 1 ? 0 : turn++ % stride; i < std::size(mixes); i += stride) {
      const auto where = std::string(way.method) + " " + way.kv + " at " + name_of(mixes[i]);
      CAPTURE(where);
      submission.parallelism = mixes[i];
      const auto result = shared_cluster().run(submission);
      const double error = range_error(result.latents.value(), single.latents.value());
      CHECK(error <= kDegreesBound);
      worst.see(error, where);
      REQUIRE(result.pictures.size() == 2);
      for (std::size_t video = 0; video < 2; ++video) {
        const int level = level_error(tall_picture(result.pictures[video].png),
                                      tall_picture(single.pictures[video].png));
        CHECK(level <= kLevelBound);
        levels.see(level, where);
      }
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where
                     << "), videos within " << levels.value << " levels");
}

TEST_CASE("a video's half precision stays near diffusers' float32, on several actors") {
  Reference reference("wan");
  const auto& of = reference.find("wan_plain");
  const std::pair<std::string, double> bounds[] = {{"bfloat16", 0.05}, {"float16", 0.01}};
  for (const auto& [dtype, bound] : bounds) {
    CAPTURE(dtype);
    auto submission = reference.submission(of, {.pp = 2, .ring = 2});
    submission.request.dtype = dtype;
    const double error = range_error(shared_cluster().run(submission).latents.value(),
                                     reference.floats(of, "latents"));
    CHECK(error <= bound);
    CHECK(error > 1e-5);  // it was computed in half precision at all
    MESSAGE(dtype << ": within " << error << " of range");
  }
}

TEST_CASE("videos by patches equal the oracle, on one actor and on several") {
  Reference reference("wan_patches");
  const Parallelism mixes[] = {{.pp = 2}, {.ulysses = 2}, {.ring = 2}, {.tp = 2}, {.cfg = 2}};
  Worst worst;
  std::size_t turn = 0;
  for (const auto& of : reference.cases()) {
    const bool guided = of.at("guidance").get<double>() > 1;
    // One actor, and each case at another of the mixes.
    for (const auto& mix : {Parallelism{}, mixes[turn++ % (guided ? 5 : 4)]}) {
      const auto where = of.at("name").get<std::string>() + " at " + name_of(mix);
      CAPTURE(where);
      const auto got = shared_cluster().run(reference.submission(of, mix)).latents.value();
      const double error = range_error(got, reference.floats(of, "latents"));
      CHECK(error <= kLatentBound);
      worst.see(error, where);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("plans know a video model's weights, K,V and what each rank sends, to the byte") {
  Reference reference("wan");
  struct Way {
    const char* method;
    const char* kv;
    int patches;
  };
  const Way ways[] = {{"exact", "stale", 1}, {"pipefusion", "predict", 3}};
  const Parallelism mixes[] = {
      {}, {.pp = 3}, {.ulysses = 2, .ring = 2}, {.tp = 2}, {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& mix : mixes) {
    for (const auto& way : ways) {
      CAPTURE(std::string(way.method) + " at " + name_of(mix));
      auto submission = reference.submission(reference.find("wan_plain"), mix);
      auto& request = submission.request;
      request.method = way.method;
      request.kv = way.kv;
      request.num_pipeline_patch = way.patches;
      request.dtype = "bfloat16";  // not packed in panels, so that odd widths are exact, too
      const Foreseen foreseen(submission);
      const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
      CHECK(report.at("request").at("frames") == 9);
      check_weights(report, foreseen);
      check_kv(report, foreseen);
      check_sent(report, foreseen);
    }
  }
}

TEST_CASE("latents to begin with have the frames one below the other; previews show a frame") {
  Reference reference("wan");
  auto submission = reference.submission(reference.find("wan_alone"));
  const auto from_seed = shared_cluster().run(submission);
  auto& request = submission.request;
  request.init_latents = Latents{{1, 4, 2 * 6, 8}, std::vector<float>(4 * 2 * 6 * 8, 0.25f)};
  request.progress_interval = 1;
  request.progress_content = "preview";
  std::string preview;
  const auto result = shared_cluster().run(submission, [&](const Progress& progress) {
    if (!progress.preview_png.empty()) preview = progress.preview_png;
  });
  CHECK(result.latents->shape == from_seed.latents->shape);
  CHECK(range_error(*result.latents, *from_seed.latents) > 0.01);
  // A fourth of 6 × 8 latents, rounded up.
  CHECK(decode_png(preview).shape == std::vector<std::int64_t>{16, 16, 3});
  request.init_latents->shape[2] = 6;
  request.init_latents->data.resize(4 * 6 * 8);
  CHECK(shared_cluster().refusal(submission).what.find("`init_latents` have shape [1, 4, 6, 8]") !=
        std::string::npos);
}

TEST_CASE("a video goes on where it was when an actor is killed") {
  Reference reference("wan");
  FaultCluster cluster(actors(4));
  auto submission = reference.submission(reference.find("wan_long"), {.cfg = 2, .ulysses = 2});
  submission.request.steps = 12;
  const auto undisturbed = cluster.run(submission);
  const auto result =
      cluster.struck(submission, 4, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
  CHECK(result.latents->data == undisturbed.latents->data);
  CHECK(result.pictures.at(0).png == undisturbed.pictures.at(0).png);
  CHECK(nlohmann::json::parse(result.report)["recoveries"].size() == 1);
}

TEST_CASE("what a video model cannot do is refused with the reason") {
  Reference reference("wan");
  const auto refusal = [&](auto change) {
    auto submission = reference.submission(reference.find("wan_plain"));
    change(submission);
    return shared_cluster().refusal(submission).what;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(refusal([](auto& s) { s.request.num_frames = 8; }), "multiples of 4 and one more"));
  CHECK(has(refusal([](auto& s) { s.request.vae_tiling = true; }), "vae_tiling"));
  CHECK(has(refusal([](auto& s) { s.request.resolution_binning = true; }), "resolution_binning"));
  CHECK(has(refusal([](auto& s) { s.parallelism = {.pp = 4, .ulysses = 2, .vae = 7}; }),
            "only 6 rows to split"));
  auto still = Reference("families").submission(Reference("families").find("sd3_plain"));
  still.request.num_frames = 5;
  CHECK(has(shared_cluster().refusal(still).what, "makes pictures"));
}
