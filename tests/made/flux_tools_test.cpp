#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/support/made.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kToolBound = 1e-5;  // of the reference's range, or of the single actor's

/// Models of FLUX.1 whose network takes pictures beside the latents.
struct Tool {
  std::string name;
  int cases;

  std::string of(const char* what) const { return name + "_" + what; }
};
const std::vector<Tool> kTools = {{"flux_fill", 5}, {"flux_control", 5}};

}  // namespace

TEST_CASE("pictures of FLUX.1's models with pictures beside the latents are their pipelines'") {
  if (lacks_made_fixtures()) return;
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.name);
    Worst latents, levels;
    check_pictures(reference, kToolBound, latents, levels);
    CHECK(latents.seen == tool.cases);
    CHECK(levels.seen == 1);
    MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                         << latents.where << "), pictures within " << levels.value << " levels");
  }
}

TEST_CASE("FLUX.1's models with pictures beside the latents make one picture at any degrees") {
  if (lacks_made_fixtures()) return;
  const std::vector<Parallelism> mixes = {{.pp = 2},
                                          {.pp = 5, .vae = 2},
                                          {.ulysses = 3},
                                          {.ring = 3, .vae = 3},
                                          {.tp = 2},
                                          {.ulysses = 2, .ring = 2},
                                          {.dp = 2, .pp = 3},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.name);
    Worst worst;
    check_degrees(reference, tool.of("wide"), mixes, worst, "a tree by the river");
    MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
  }
}

TEST_CASE("FLUX.1's models with pictures beside the latents by patches equal the oracle") {
  if (lacks_made_fixtures()) return;
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.of("patches"));
    Worst worst;
    check_oracle(reference, worst);
    CHECK(worst.seen == 28);
    MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
  }
}

TEST_CASE("what stands beside the latents goes with streamed blocks, half precision and caches") {
  if (lacks_made_fixtures()) return;
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.name);
    const std::string plain = tool.of("plain");
    Worst half;
    check_half(reference, plain, "bfloat16", 0.05, half);
    check_half(reference, plain, "float16", 0.01, half);
    MESSAGE("within " << half.value << " of range");
    const auto& of = reference.find(plain);
    auto submission = reference.submission(of, {.pp = 2, .tp = 2});
    submission.request.offload = "blocks";
    CHECK(range_error(shared_cluster().run(submission).latents.value(),
                      reference.floats(of, "latents")) <= kToolBound);
    submission.request.offload = "";
    submission.request.step_cache = "teacache";
    submission.request.steps = 6;
    const auto several = shared_cluster().run(submission).latents.value();
    submission.parallelism = {};
    CHECK(range_error(several, shared_cluster().run(submission).latents.value()) <= kToolBound);
  }
}

TEST_CASE("plans know what jobs with pictures beside the latents hold and send, to the byte") {
  if (lacks_made_fixtures()) return;
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.name);
    check_foreseen(reference, tool.of("wide"));
    auto submission =
        reference.submission(reference.find(tool.of("two")), {.dp = 2, .pp = 2, .vae = 2});
    const Foreseen foreseen(submission);
    check_sent(nlohmann::json::parse(shared_cluster().run(submission).report), foreseen);
    submission.request.vae_tiling = true;
    const Foreseen tiled(submission);
    check_sent(nlohmann::json::parse(shared_cluster().run(submission).report), tiled);
  }
}

TEST_CASE("pictures beside the latents with a seed of their own are each what it is alone") {
  if (lacks_made_fixtures()) return;
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.name);
    auto submission = reference.submission(reference.find(tool.of("wide")), {.dp = 2, .pp = 2});
    submission.request.picture_seeds = {7, 1};
    submission.request.images_per_prompt = 2;
    const auto both = shared_cluster().run(submission).latents.value();
    const auto alone = reference.floats(reference.find(tool.of("wide")), "latents");
    auto second = both;
    second.shape[0] = 1;
    second.data.erase(second.data.begin(),
                      second.data.begin() + static_cast<std::ptrdiff_t>(second.data.size() / 2));
    CHECK(range_error(second, alone) <= kToolBound);
  }
}

TEST_CASE("kill -9 of a job with pictures beside the latents: they are made again, the same") {
  if (lacks_made_fixtures()) return;
  FaultCluster cluster(actors(3));
  for (const auto& tool : kTools) {
    CAPTURE(tool.name);
    Reference reference(tool.name);
    auto submission = reference.submission(reference.find(tool.of("wide")), {.pp = 2});
    submission.request.steps = 8;
    const auto undisturbed = cluster.run(submission);
    const auto restarts = cluster.restarts();
    const auto report = nlohmann::json::parse(undisturbed.report);
    const std::uint32_t first = report["actors"][0]["actor"];
    cluster.hold(first, HoldAt{.step = 5});
    const auto job = cluster.submit(submission);
    cluster.held(first);
    REQUIRE(cluster.keeps(job, 5));
    kill(cluster.pids().at(first), SIGKILL);
    const auto result = cluster.client().wait(job, std::chrono::minutes(5));
    if (!result) FAIL(result.error().what);
    CHECK(result.value().latents->data == undisturbed.latents->data);
    CHECK(nlohmann::json::parse(result.value().report)["recoveries"][0]["step"] == 5);
    REQUIRE(eventually(kPatience, [&] { return cluster.restarts() > restarts; }));
    REQUIRE(cluster.whole());
  }
}

TEST_CASE("FLUX.1 Fill needs a picture and its mask") {
  if (lacks_made_fixtures()) return;
  Reference reference("flux_fill");
  auto submission = reference.submission(reference.find("flux_fill_plain"));
  const auto refusal = [&] { return shared_cluster().refusal(submission).what; };
  submission.request.mask_image.clear();
  CHECK(has(refusal(), "`mask_image` is missing: FluxFillPipeline paints within the mask"));
  submission.request.init_image.clear();
  submission.request.strength.reset();
  CHECK(has(refusal(), "`init_image` is missing: FluxFillPipeline"));
}
