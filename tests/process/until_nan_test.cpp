// `until JOB nan`: a job that meets NaN or infinity stands still there instead of failing.
#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/damage.h"
#include "tests/process/support/watched_stage.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

namespace troupe::testing {

using nlohmann::json;
using namespace std::chrono_literals;

namespace {

const std::string kInjected = "(a NaN was injected)";

/// Waits until the job stands still and all that was issued has run; returns why it stands still.
std::string met(WatchedStage& stage, std::uint64_t job) {
  std::string cause;
  REQUIRE(eventually(2 * kPatience, [&] {
    const auto row = stage.cluster.job(job);
    REQUIRE(row);
    cause = row->cause;
    if (row->state == JobState::failed) FAIL(cause);
    return row->state == JobState::paused && !cause.empty();
  }));
  CHECK(stage.still(job));
  return cause;
}

std::uint64_t not_finite(Inspector& inspector, std::uint64_t job, int actors) {
  std::uint64_t count = 0;
  for (int actor = 0; actor < actors; ++actor) {
    const auto tensors = inspector.tensors(static_cast<std::uint32_t>(actor), job);
    REQUIRE(tensors);
    for (const auto& tensor : tensors.value().tensors)
      count += tensor.not_finite;
  }
  return count;
}

Submission two_stages(int steps) {
  auto submission = demo_job(steps);
  submission.parallelism = {.pp = 2};
  submission.detached = true;
  return submission;
}

}  // namespace

TEST_CASE("until nan: the job stands still, is looked into, and fails when it is let go") {
  WatchedStage stage(2);
  auto& inspector = stage.inspector();
  const auto undisturbed = stage.cluster.run(two_stages(6));

  const auto plain = stage.paused_job(two_stages(40));
  REQUIRE(inspector.inject(0, Fault::not_finite));
  REQUIRE(inspector.control(plain, JobAction::resume));
  const auto as_usual = stage.cluster.client().wait(plain, 600s);
  REQUIRE_FALSE(as_usual);
  REQUIRE(stage.cluster.whole());

  const auto job = stage.paused_job(two_stages(40));
  REQUIRE(inspector.inject(0, Fault::not_finite));
  const auto goes_on = inspector.control(job, JobAction::until_not_finite);
  REQUIRE(goes_on);
  CHECK(has(goes_on.value(), "goes on until something is not finite"));
  const auto cause = met(stage, job);
  CHECK(cause.starts_with("actor 0, step "));
  CHECK(has(cause, "[actor] hidden state " + kInjected + " at step "));
  CHECK(has(cause, "is not finite after block 3, in float32"));
  const auto graph = json::parse(inspector.graph(job).value());
  CHECK(graph["paused"] == true);
  CHECK(graph["not_finite"] == cause);
  CHECK(not_finite(inspector, job, 2) > 0);
  CHECK(inspector.latents(job));
  const auto shown = stage.repl("jobs " + std::to_string(job) + "; graph " + std::to_string(job));
  CHECK(has(shown.out, kInjected));
  CHECK(has(shown.out, ", paused: actor 0, step "));
  const auto again = stage.repl("until " + std::to_string(job) + " nan");
  CHECK(again.exit_code == 1);
  CHECK(has(again.err, "is paused already: actor 0, step "));

  // Who waits for it is told, also late.
  std::mutex mutex;
  std::vector<std::string> told;
  auto waiting = std::async(std::launch::async, [&] {
    return stage.cluster.another_client().wait(job, 600s, [&](const Progress& progress) {
      const std::lock_guard lock(mutex);
      told.insert(told.end(), progress.warnings.begin(), progress.warnings.end());
    });
  });
  REQUIRE(eventually(kPatience, [&] {
    const std::lock_guard lock(mutex);
    return std::ranges::find(told, "it is paused: " + cause) != told.end();
  }));

  // Who shares its actors does not notice.
  const auto other = stage.cluster.run(two_stages(6));
  CHECK(other.latents->data == undisturbed.latents->data);
  CHECK(json::parse(other.report)["recoveries"].empty());

  CHECK(inspector.control(job, JobAction::resume).value() ==
        "job " + std::to_string(job) + " fails: " + cause);
  const auto result = waiting.get();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == as_usual.error().code);
  CHECK(has(result.error().what, cause));
  CHECK(stage.cluster.restarts() == 0);
}

TEST_CASE("until nan: whatever the degrees, all that was issued comes to its end") {
  WatchedStage stage(2);
  auto& inspector = stage.inspector();
  const auto stops = [&](const char* method, int patches, Parallelism degrees, int pictures = 1) {
    CAPTURE(std::string(method));
    auto submission = demo_job(40);
    submission.request.method = method;
    submission.request.num_pipeline_patch = patches;
    submission.request.images_per_prompt = pictures;
    submission.parallelism = degrees;
    const auto job = stage.paused_job(submission);
    REQUIRE(inspector.inject(1, Fault::not_finite));
    REQUIRE(inspector.control(job, JobAction::until_not_finite));
    const auto cause = met(stage, job);
    CHECK(has(cause, kInjected));
    CHECK(not_finite(inspector, job, 2) > 0);
    REQUIRE(inspector.control(job, JobAction::resume));
    const auto result = stage.cluster.client().wait(job, 600s);
    REQUIRE_FALSE(result);
    CHECK(has(result.error().what, cause));
    REQUIRE(stage.cluster.whole());
  };
  stops("pipefusion", 4, {.pp = 2});
  stops("distrifusion", 2, {.ring = 2});
  stops("exact", 1, {.cfg = 2});
  stops("exact", 1, {.tp = 2});
  stops("exact", 1, {.dp = 2}, 2);
}

TEST_CASE("until nan: set before a job begins it outlives a loss, and such a job is cancelled") {
  WatchedStage stage(2);
  auto& inspector = stage.inspector();
  stage.cluster.hold(0, {.step = 3});
  const auto job = stage.cluster.submit(two_stages(40));
  REQUIRE(inspector.control(job, JobAction::until_not_finite));
  stage.cluster.held(0);
  stage.cluster.hold(0, {.step = 10});  // where it goes on after the loss
  REQUIRE(inspector.inject(1, Fault::kill));
  REQUIRE(eventually(2 * kPatience, [&] { return has(stage.cluster.held(0).doing, " step 10 "); }));
  REQUIRE(inspector.inject(1, Fault::not_finite));
  stage.cluster.release(0);
  const auto cause = met(stage, job);
  CHECK(has(cause, kInjected));
  REQUIRE(stage.cluster.client().cancel(job));
  const auto result = stage.cluster.client().wait(job, 600s);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::cancelled);
  stage.cluster.run(two_stages(2));
}

TEST_CASE("until nan: what the decoder makes counts, too") {
  WatchedStage stage(2);
  auto& inspector = stage.inspector();
  const Scratch place;
  const auto model = copy_of("tiny-pixart", place.path);
  fill_with(model / "vae/diffusion_pytorch_model.safetensors", "decoder.conv_out.weight", 3e38F);
  auto submission = tiny_job(40);
  submission.model = model.string();
  submission.parallelism = {.pp = 2};
  const auto job = stage.paused_job(submission);
  const auto told = stage.repl("until " + std::to_string(job) + " nan");
  CHECK(told.exit_code == 0);
  CHECK(has(told.out, "job " + std::to_string(job) + " is paused: actor "));
  CHECK(has(told.out, "decoded picture is not finite, in float32"));
  const auto cause = met(stage, job);
  CHECK(not_finite(inspector, job, 2) == 0);
  CHECK(stage.cluster.job(job)->step == 40);
  REQUIRE(inspector.control(job, JobAction::resume));
  const auto result = stage.cluster.client().wait(job, 600s);
  REQUIRE_FALSE(result);
  CHECK(has(result.error().what, cause));
}

TEST_CASE("until nan: a job that makes nothing of the kind ends well, and that is told") {
  WatchedStage stage(2);
  const auto job = stage.paused_job(two_stages(40));
  const auto told = stage.repl("until " + std::to_string(job) + " nan");
  CHECK(told.exit_code == 1);
  CHECK(has(told.err, "is succeeded, not paused at what is not finite"));
  CHECK(stage.cluster.client().wait(job, 600s));
}

}  // namespace troupe::testing
