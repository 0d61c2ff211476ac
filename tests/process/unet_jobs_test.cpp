#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

constexpr double kReferenceBound = 1e-5;  // of the reference's range
constexpr double kOracleBound = 1e-4;     // likewise, of DistriFusion
constexpr double kDegreesBound = 1e-5;    // of the range of the single actor's latents
constexpr int kLevelBound = 1;            // of 255

/// Pictures × branches × ranks that share the rows, on up to eight actors.
std::vector<Parallelism> unet_mixes() {
  std::vector<Parallelism> mixes;
  for (int dp = 1; dp <= 4; ++dp) {
    for (int cfg = 1; cfg <= 2; ++cfg) {
      for (int ring = 1; ring <= 8; ++ring) {
        for (int ulysses = 1; ulysses <= 8; ++ulysses) {
          const int world = dp * cfg * ring * ulysses;
          if (world > 1 && world <= 8) {
            Parallelism mix{.dp = dp, .cfg = cfg};
            mix.ulysses = ulysses;
            mix.ring = ring;
            mixes.push_back(mix);
          }
        }
      }
    }
  }
  return mixes;
}

double worst_of(const JobResult& one, const Latents& expected) {
  return range_error(one.latents.value(), expected);
}

}  // namespace

TEST_CASE("Stable Diffusion's pictures are those of its pipelines in diffusers") {
  Reference reference("unet_jobs");
  Worst latents;
  Worst levels;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(reference.submission(of));
    const double error = worst_of(result, reference.floats(of, "latents"));
    CHECK(error <= kReferenceBound);
    latents.see(error, name);
    if (!of.at("image").get<bool>()) continue;
    for (std::size_t i = 0; i < result.pictures.size(); ++i) {
      const int level = level_error(decode_png(result.pictures[i].png),
                                    picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= kLevelBound);
      levels.see(level, name);
    }
  }
  CHECK(latents.seen == 42);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), " << levels.seen << " pictures within "
                       << levels.value << " levels");
}

TEST_CASE(
    "an old folder's picture is that of its pipeline in diffusers, in the size that this takes") {
  const auto of = nlohmann::json::parse(
      read_all(TROUPE_SOURCE_DIR "/tests/fixtures/expected/pipelines.json"))["old_picture"];
  const Scratch scratch;
  const auto folder = scratch.path / "old";
  std::filesystem::copy(checkpoint(of["folder"].get<std::string>()), folder,
                        std::filesystem::copy_options::recursive);
  for (const auto& [file, keys] : of["files"].items()) {
    auto settings = nlohmann::json::parse(read_all(folder / file));
    settings.merge_patch(keys);
    scratch.file("old/" + file, settings.dump());
  }
  Submission submission;
  submission.model = folder;
  submission.request.prompts = {of["call"]["prompt"].get<std::string>()};
  submission.request.steps = of["call"]["num_inference_steps"];
  submission.request.guidance_scale = of["call"]["guidance_scale"].get<double>();
  submission.request.seed = of["seed"];
  submission.request.output_type = "latent";
  const auto whole = shared_cluster().run(submission).latents.value();
  REQUIRE(whole.shape == of["shape"].get<std::vector<std::int64_t>>());
  const auto every = of["every"].get<std::int64_t>();
  const Latents expected{{1, whole.shape[1], whole.shape[2] / every, whole.shape[3] / every},
                         of["latents"].get<std::vector<float>>()};
  Latents seen{expected.shape, {}};
  for (std::int64_t row = 0; row < whole.shape[1] * whole.shape[2]; row += every) {
    for (std::int64_t column = 0; column < whole.shape[3]; column += every)
      seen.data.push_back(whole.data.at(static_cast<std::size_t>(row * whole.shape[3] + column)));
  }
  CHECK(range_error(seen, expected) <= kReferenceBound);
}

TEST_CASE("a U-Net's exact picture is the same at any degrees") {
  Reference reference("unet_jobs");
  const auto all = unet_mixes();
  for (const std::string family : {"sdxl", "sd15"}) {
    Worst worst;
    std::size_t turn = 0;
    for (const std::string kind :
         {"two_by_two", "wide", "uneven", "ancestral", "pndm", "pndm_velocity", "pndm_rounds"}) {
      const auto& of = reference.find(family + "_" + kind);
      auto submission = reference.submission(of);
      const auto pictures = submission.request.prompts.size() * of.at("n").get<int>();
      const auto single = shared_cluster().run(submission).latents.value();
      for (const auto& mix : all) {
        if (static_cast<std::size_t>(mix.dp) > pictures) continue;
        if (!full_matrix() && ++turn % 4 != 0) continue;
        const auto where = family + " " + kind + " at " + name_of(mix);
        CAPTURE(where);
        submission.parallelism = mix;
        const double error = worst_of(shared_cluster().run(submission), single);
        CHECK(error <= kDegreesBound);
        worst.see(error, where);
      }
    }
    CHECK(worst.seen > 10);
    MESSAGE(family << ": " << worst.seen << " runs within " << worst.value << " of range ("
                   << worst.where << ")");
  }
}

TEST_CASE("a U-Net by patches gives the oracle's picture, whoever shares the patches") {
  Reference reference("unet_jobs_patches");
  Worst oracle;
  Worst degrees;
  double least = 1;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto expected = reference.floats(of, "latents");
    const auto single = shared_cluster().run(reference.submission(of));
    const double error = worst_of(single, expected);
    CHECK(error <= kOracleBound);
    oracle.see(error, name);
    const double stale = range_error(expected, reference.floats(of, "exact"));
    if (of.at("exchange") != "all") least = std::min(least, stale);
    const int patches = of.at("patches");
    for (int ranks = 2; ranks <= patches; ++ranks) {
      Parallelism mix;
      (ranks % 2 == 0 ? mix.ulysses : mix.ring) = ranks;
      if (ranks == 4) mix.ulysses = mix.ring = 2;
      if (ranks == 2 && of.at("guidance") > 1) mix.cfg = 2;
      CAPTURE(name_of(mix));
      const double off =
          worst_of(shared_cluster().run(reference.submission(of, mix)), single.latents.value());
      // A row alone may have a corrected variance near zero, which makes much of rounding.
      CHECK(off <= (name.ends_with("thin") ? kOracleBound : kDegreesBound));
      degrees.see(off, name + " at " + name_of(mix));
    }
  }
  CHECK(oracle.seen == 32);
  CHECK(least > 100 * kOracleBound);  // staleness shows
  MESSAGE(oracle.seen << " cases within " << oracle.value << " of range (" << oracle.where << "), "
                      << degrees.seen << " shared out within " << degrees.value << " ("
                      << degrees.where << "), stale ones at least " << least << " from exact");
}

TEST_CASE("half precision is near float32, also by patches on several actors") {
  Reference reference("unet_jobs_patches");
  const std::pair<std::string, double> bounds[] = {{"bfloat16", 0.05}, {"float16", 0.01}};
  for (const std::string name : {"sdxl_corrected", "sd15_corrected"}) {
    const auto expected = reference.floats(reference.find(name), "latents");
    for (const auto& [dtype, bound] : bounds) {
      auto submission = reference.submission(reference.find(name), {.cfg = 2, .ring = 2});
      submission.request.dtype = dtype;
      CAPTURE(name + " " + dtype);
      const double error = worst_of(shared_cluster().run(submission), expected);
      CHECK(error < bound);
      CHECK(error > 1e-5);  // it was computed in that type
    }
  }
}

TEST_CASE("kill -9: a U-Net's job goes on, exact to the bit, stale as its report says") {
  FaultCluster cluster(actors(4));
  Reference reference("unet_jobs_patches");
  for (const std::string way :
       {"exact", "cached", "distrifusion", "cached distrifusion", "naive"}) {
    CAPTURE(way);
    const bool by_patches = way.ends_with("distrifusion") || way == "naive";
    const bool stale = way != "exact" && way != "naive";
    auto job = reference.submission(reference.find("sdxl_corrected"), {.cfg = 2, .ring = 2});
    job.request.steps = 24;
    job.request.height = 192;
    job.request.width = 128;
    job.request.method = by_patches ? "distrifusion" : "exact";
    job.request.num_pipeline_patch = by_patches ? 3 : 1;
    if (way == "naive") job.request.exchange = "naive";
    if (way.starts_with("cached")) {
      job.request.step_cache = "first-block";
      job.request.step_cache_threshold = 0.3;
    }
    const auto undisturbed = cluster.run(job);
    if (way.starts_with("cached"))
      CHECK(nlohmann::json::parse(undisturbed.report)["step_cache"]["skipped"] > 0);
    const auto result =
        cluster.struck(job, 5, [&](std::uint64_t) { kill(cluster.pids().at(3), SIGKILL); });
    const auto report = nlohmann::json::parse(result.report);
    REQUIRE(report["recoveries"].size() == 1);
    const auto refills = report["request"]["refill_steps"].get<std::vector<int>>();
    CHECK(refills.size() == (stale ? 1 : 0));
    job.request.refill_steps = refills;
    const auto again = stale ? cluster.run(job) : undisturbed;
    CHECK(result.latents->data == again.latents->data);
    MESSAGE(way << ": went on at step " << report["recoveries"][0]["step"] << " after "
                << report["recoveries"][0]["seconds"] << " s");
  }
  CHECK(left_in_memory() == "");
}

TEST_CASE("kill -9: PNDM goes on from its kept predictions, to the bit") {
  FaultCluster cluster(actors(2));
  Reference reference("unet_jobs");
  for (const std::string name : {"sd15_pndm", "sd15_pndm_rounds"}) {
    CAPTURE(name);
    auto job = reference.submission(reference.find(name), {.ring = 2});
    job.request.steps = 40;
    job.request.height = 128;
    const auto undisturbed = cluster.run(job);
    // In the rounds, and where four predictions are looked back at.
    for (const int step : {name == "sd15_pndm" ? 1 : 6, 30}) {
      const auto result =
          cluster.struck(job, step, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
      const auto report = nlohmann::json::parse(result.report);
      CHECK(report["recoveries"].size() == 1);
      CHECK(result.latents->data == undisturbed.latents->data);
      MESSAGE(name << ": went on at call " << report["recoveries"][0]["step"]);
    }
  }
}

TEST_CASE("U-Net jobs share a deployment and do not see each other's patches") {
  FaultCluster cluster(actors(2));
  Reference reference("unet_jobs_patches");
  const auto job = [&](int seed) {
    auto submission = reference.submission(reference.find("sdxl_corrected"), {.ring = 2});
    submission.request.steps = 12;
    submission.request.seed = static_cast<std::uint64_t>(seed);
    return submission;
  };
  std::vector<JobResult> alone;
  for (int seed = 0; seed < 3; ++seed)
    alone.push_back(cluster.run(job(seed)));
  std::vector<std::uint64_t> ids;
  for (int seed = 0; seed < 3; ++seed)
    ids.push_back(cluster.submit(job(seed)));
  for (int seed = 0; seed < 3; ++seed) {
    const auto result = cluster.client().wait(ids[seed], 600s);
    if (!result) FAIL(result.error().what);
    CHECK(result.value().latents->data == alone[seed].latents->data);
  }
}
