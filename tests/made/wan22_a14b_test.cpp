#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "controller/deployments/memory_room.h"
#include "tests/process/support/cached.h"
#include "tests/process/support/family_checks.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kA14bBound = 1e-5;  // of the reference's range
constexpr int kFirstOfSecond = 2;    // step of a14b_plain that the second transformer computes

std::vector<std::uint64_t> weights_of(const JobResult& result) {
  const auto report = nlohmann::json::parse(result.report);
  std::vector<std::uint64_t> bytes;
  for (const auto& actor : report.at("actors"))
    bytes.push_back(actor.at("weight_bytes"));
  return bytes;
}

/// The plain case in a type whose weights are kept as the plan counts them: not packed in panels.
Submission in_bfloat16(Reference& reference, const Parallelism& mix = {}) {
  auto submission = reference.submission(reference.find("a14b_plain"), mix);
  submission.request.dtype = "bfloat16";
  return submission;
}

/// Options of a cluster each of whose actors may hold so many bytes.
cluster::ClusterOptions holding(std::uint64_t bytes, int count) {
  auto options = actors(count);
  options.memory_limit = bytes;
  return options;
}

}  // namespace

TEST_CASE("videos of two transformers are those of WanPipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  Worst latents, levels;
  check_pictures(reference, kA14bBound, latents, levels, [](const auto& of, auto& submission) {
    for (const std::string key : {"lora", "lora_2"})
      if (of.contains(key))
        submission.request.loras.push_back(
            {(kMade / of.at(key).template get<std::string>()).string(), 1, key == "lora_2"});
  });
  CHECK(latents.seen == 12);
  CHECK(levels.seen >= 3);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), videos within " << levels.value << " levels");
}

TEST_CASE("two transformers make one video at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 3},
                                          {.ulysses = 3},
                                          {.ring = 2},
                                          {.tp = 2},
                                          {.dp = 2, .pp = 3},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  check_degrees(reference, "a14b_plain", mixes, worst);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("patches of two transformers are the oracle's, whose second one begins anew") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b_patches");
  Worst worst;
  check_oracle(reference, worst);
  CHECK(worst.seen == 10);
  MESSAGE("within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("plans know what two transformers hold and send, and half precision stays near") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  check_foreseen(reference, "a14b_plain");
  Worst worst;
  check_half(reference, "a14b_plain", "bfloat16", 0.05, worst);
}

TEST_CASE("one transformer after the other, where both do not fit, makes the same video") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  for (const auto& mix : {Parallelism{}, Parallelism{.pp = 2}, Parallelism{.ring = 2, .tp = 2}}) {
    CAPTURE(name_of(mix));
    const auto job = in_bfloat16(reference, mix);
    const auto plan = plan_of(job);
    const auto both = shared_cluster().run(job);
    const auto needs = cluster::needs_of(plan);
    std::uint64_t alone = 0;
    for (const auto& need : needs)
      alone = std::max(alone, need.total());
    FaultCluster narrow(holding(alone, plan.degrees.world()));
    // The second job begins with the first transformer again.
    for (int run = 0; run < 2; ++run) {
      const auto result = narrow.run(job);
      CHECK(result.latents->data == both.latents->data);
      const auto held = weights_of(result);
      bool take_turns = false;
      for (std::size_t rank = 0; rank < held.size(); ++rank) {
        const auto& need = needs[rank];
        const bool fit = need.total() + need.second <= alone;
        take_turns = take_turns || !fit;
        CHECK(held[rank] == plan.memory[rank].weights + (fit ? need.second : 0));
      }
      CHECK(take_turns);
    }
    // Jobs of such a deployment wait for each other.
    for (const auto id : {narrow.submit(job), narrow.submit(job)}) {
      const auto result = narrow.client().wait(id, kPatience);
      REQUIRE(result);
      CHECK(result.value().latents->data == both.latents->data);
    }
  }
}

TEST_CASE("both transformers stay as soon as there is room for them, and text encoders go first") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  const auto job = in_bfloat16(reference);
  const auto plan = plan_of(job);
  const auto need = cluster::needs_of(plan).front();
  REQUIRE(need.second > 0);
  for (const bool fits : {false, true}) {
    CAPTURE(fits);
    FaultCluster cluster(holding(need.total() + need.second - (fits ? 0 : 1), 1));
    const auto held = weights_of(cluster.run(job)).front();
    CHECK(held == plan.memory[0].weights + (fits ? need.second : 0));
  }
}

TEST_CASE("kill -9 before, at and behind the second transformer's first step") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  const auto exact = reference.submission(reference.find("a14b_plain"), {.pp = 2});
  FaultCluster cluster(actors(2));
  const auto undisturbed = cluster.run(exact);
  for (const int step : {kFirstOfSecond - 1, kFirstOfSecond, kFirstOfSecond + 1}) {
    CAPTURE(step);
    const auto result =
        cluster.struck(exact, step, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
    CHECK(result.latents->data == undisturbed.latents->data);
  }
  // By patches the step after the loss is named, and can be made again with it.
  auto patched = exact;
  patched.request.method = "pipefusion";
  patched.request.num_pipeline_patch = 3;
  patched.request.warmup_steps = 1;
  const auto result = cluster.struck(patched, kFirstOfSecond + 1,
                                     [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
  const auto report = nlohmann::json::parse(result.report);
  patched.request.refill_steps = report["request"]["refill_steps"].get<std::vector<int>>();
  CHECK(cluster.run(patched).latents->data == result.latents->data);
}

TEST_CASE("a step cache begins anew with the second transformer, at any degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  Worst worst;
  for (const std::string method : {"exact", "pipefusion"}) {
    for (const std::string cache : {"first-block", "teacache"}) {
      CAPTURE(method + " " + cache);
      auto submission = of_case(reference, "a14b_plain", cache, 10);  // leaves out what it may
      submission.request.method = method;
      submission.request.num_pipeline_patch = method == "exact" ? 1 : 3;
      submission.request.warmup_steps = 1;
      const auto by_step = cached(shared_cluster().run(submission)).by_step;
      REQUIRE(by_step.size() == 6);
      CHECK(by_step[0] == 0);
      CHECK(by_step[kFirstOfSecond - 1] > 0);
      CHECK(by_step[kFirstOfSecond] == 0);
      CHECK(by_step[kFirstOfSecond + 1] > 0);
      check_mixes(submission, method + " " + cache, {{.cfg = 2, .pp = 2}, {.ring = 2, .tp = 2}},
                  worst);
    }
  }
}

TEST_CASE("with offload two transformers make the bits that they make without, in 8 bits too") {
  if (lacks_made_fixtures()) return;
  Reference reference("wan22_a14b");
  for (const std::string weights : {"", "int8"}) {
    for (const auto& mix : {Parallelism{}, Parallelism{.pp = 2}}) {
      CAPTURE(weights + " at " + name_of(mix));
      auto submission = in_bfloat16(reference, mix);
      submission.request.weight_dtype = weights;
      const auto plain = shared_cluster().run(submission);
      submission.request.offload = "blocks";
      const auto result = shared_cluster().run(submission);
      CHECK(result.latents->data == plain.latents->data);
      if (weights == "int8") continue;
      const auto plan = plan_of(submission);
      const auto held = weights_of(result);
      for (std::size_t rank = 0; rank < held.size(); ++rank)
        CHECK(held[rank] == plan.memory[rank].weights + plan.memory[rank].second);
    }
  }
}
