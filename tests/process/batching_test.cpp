#include <signal.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/process/support/compare.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// Bound of an exact method's difference, as a part of the range of the latents that the job has
/// alone.
constexpr double kBound = 1e-4;

/// Four jobs of five pictures, and one that will be cancelled. Prompts of different lengths.
std::vector<Submission> jobs_for(const std::string& sampler) {
  std::vector<Submission> jobs;
  for (const std::string prompt :
       {"a red circle", "a blue square to the left of a green triangle", "a tree", "", "gone"}) {
    auto job = tiny_job(20);
    job.request.prompts = {prompt};
    if (prompt.empty()) job.request.prompts.push_back("a dog");
    job.request.seed = 20 + jobs.size();
    job.request.sampler = sampler;
    job.parallelism.pp = 2;
    jobs.push_back(job);
  }
  return jobs;
}

/// A job that does not end before the next ones are here, for its first actor is held.
std::uint64_t held_job(FaultCluster& cluster, const Submission& submission) {
  cluster.hold(0, {.step = 1});
  const auto job = cluster.submit(submission);
  cluster.held(0);
  return job;
}

/// Waits until actor 0 is held at that step.
bool holds_at(FaultCluster& cluster, int step) {
  const auto words = " step " + std::to_string(step) + " ";
  return eventually(2 * kPatience, [&] { return has(cluster.held(0).doing, words); });
}

}  // namespace

TEST_CASE("jobs that wait compute as one: each picture is its job's own, through cancel and kill") {
  auto options = actors(2);
  options.max_jobs_together = 1;  // so that there is a queue
  FaultCluster cluster(options);
  for (const std::string sampler : {"", "euler-ancestral"}) {
    CAPTURE(sampler);
    const auto jobs = jobs_for(sampler);
    std::vector<JobResult> alone;
    for (std::size_t i = 0; i < 4; ++i)
      alone.push_back(cluster.run(jobs[i]));
    auto blocker = tiny_job();
    blocker.parallelism.pp = 2;
    const auto first = held_job(cluster, blocker);
    std::vector<std::uint64_t> ids;
    auto there = std::make_shared<std::atomic<bool>>(false);
    auto previews = std::make_shared<std::atomic<int>>(0);
    for (auto job : jobs) {
      job.may_batch = true;
      job.request.progress_interval = 1;
      job.request.progress_content = "preview";
      ids.push_back(cluster.submit(job, [=](const Progress& progress) {
        *previews += !progress.preview_png.empty();
        if (progress.phase == JobPhase::denoising && progress.step >= 1) *there = true;
      }));
    }
    for (const auto id : ids)
      CHECK(cluster.job(id)->state == JobState::queued);
    cluster.hold(0, {.step = 4});  // what comes then comes in the midst of it
    if (const auto gone = cluster.client().cancel(first); !gone) FAIL(gone.error().what);
    REQUIRE(eventually(2 * kPatience, [&] { return there->load() && previews->load() > 0; }));
    REQUIRE(holds_at(cluster, 4));
    cluster.freeze();
    CHECK(cluster.job(ids[0])->state == JobState::running);
    CHECK(cluster.job(ids[0])->cause == "computes with jobs " + std::to_string(ids[1]) + ", " +
                                            std::to_string(ids[2]) + ", " + std::to_string(ids[3]) +
                                            ", " + std::to_string(ids[4]));
    CHECK(cluster.client().cancel(ids[4]));
    CHECK(cluster.job(ids[4])->state == JobState::cancelled);  // at once, although no actor moves
    CHECK(has(cluster.job(ids[3])->cause, "computes with"));
    // Also with who has left it.
    CHECK(cluster.job(ids[3])->batch > ids[4]);
    CHECK(cluster.job(ids[3])->with_jobs == std::vector{ids[0], ids[1], ids[2], ids[4]});
    kill(cluster.pids().at(1), SIGKILL);
    cluster.thaw();
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      const auto result = cluster.client().wait(ids[i], 600s);
      if (!result) FAIL(result.error().what);
      const auto& got = result.value();
      REQUIRE(got.pictures.size() == alone[i].pictures.size());
      const double error = range_error(*got.latents, *alone[i].latents);
      MESSAGE("job " << i << " differs from the one alone by " << error << " of its range");
      CHECK(error <= kBound);
      const auto report = nlohmann::json::parse(got.report);
      CHECK(report["seed"] == jobs[i].request.seed);
      CHECK(report["request"]["prompts"] == jobs[i].request.prompts);
      CHECK(report["batch"]["with_jobs"].size() == 4);
      CHECK(report["batch"]["pictures"] == 6);
      CHECK(report["recoveries"].size() == 1);
      for (std::size_t n = 0; n < got.pictures.size(); ++n) {
        const auto& png = got.pictures[n].png;
        CHECK(level_error(decode_png(png), decode_png(alone[i].pictures[n].png)) <= 1);
        CHECK(png_text(png, "parameters") == png_text(alone[i].pictures[n].png, "parameters"));
        CHECK(png_text(png, "troupe") == png_text(alone[i].pictures[n].png, "troupe"));
      }
    }
    const auto fallen = cluster.client().wait(ids[4], kPatience);
    REQUIRE(!fallen);
    CHECK(fallen.error().code == ErrorCode::cancelled);
    CHECK(cluster.whole());
  }
  // Their number is none of a job.
  const auto next = cluster.run(tiny_job());
  CHECK(nlohmann::json::parse(next.report).count("batch") == 0);
}

TEST_CASE("a batch over replicas: a job's pictures come together again, latents of steps, too") {
  auto options = actors(2);
  options.max_jobs_together = 1;
  FaultCluster cluster(options);
  std::vector<Submission> jobs;
  for (int i = 0; i < 3; ++i) {
    auto job = tiny_job(4);
    job.request.prompts = {"a cat", "a dog " + std::to_string(i)};
    job.request.seed = 5 + static_cast<std::uint64_t>(i);
    job.request.noise_dtype = "model";
    job.parallelism.dp = 2;  // of six pictures each replica has three: the second job's are apart
    jobs.push_back(job);
  }
  std::vector<JobResult> alone;
  for (const auto& job : jobs)
    alone.push_back(cluster.run(job));
  auto blocker = tiny_job();
  blocker.request.prompts.push_back("more");
  blocker.parallelism.dp = 2;
  const auto first = held_job(cluster, blocker);
  std::vector<std::uint64_t> ids;
  struct Seen {
    std::mutex mutex;
    std::array<Latents, 3> latents;  // of the last step
  };
  auto seen = std::make_shared<Seen>();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto job = jobs[i];
    job.may_batch = true;
    job.request.progress_interval = 4;
    job.request.progress_content = "latents";
    ids.push_back(cluster.submit(job, [=](const Progress& progress) {
      const std::lock_guard lock(seen->mutex);
      if (progress.latents) seen->latents.at(i) = *progress.latents;
    }));
  }
  CHECK(cluster.client().cancel(first));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    CAPTURE(i);
    const auto result = cluster.client().wait(ids[i], 600s);
    if (!result) FAIL(result.error().what);
    const auto& got = result.value();
    CHECK(nlohmann::json::parse(got.report)["batch"]["own_pictures"] ==
          nlohmann::json{2 * i, 2 * i + 2});
    CHECK(range_error(*got.latents, *alone[i].latents) <= kBound);
    CHECK(eventually(kPatience, [&] {
      const std::lock_guard lock(seen->mutex);
      return range_error(seen->latents.at(i), *got.latents) == 0;
    }));
    for (std::size_t n = 0; n < got.pictures.size(); ++n)
      CHECK(png_text(got.pictures[n].png, "troupe") ==
            png_text(alone[i].pictures[n].png, "troupe"));
  }
}

TEST_CASE("a batch that fails is told of, with a record, and its jobs begin anew") {
  const Scratch scratch;
  auto options = actors(1);
  options.max_jobs_together = 1;
  options.log_folder = scratch / "logs";
  std::filesystem::create_directory(options.log_folder);
  FaultCluster cluster(options);
  const auto first = held_job(cluster, tiny_job());
  auto job = tiny_job();
  job.may_batch = true;
  const auto one = cluster.submit(job);
  const auto two = cluster.submit(job);
  cluster.hold(0, {.step = 2});
  CHECK(cluster.client().cancel(first));
  REQUIRE(holds_at(cluster, 2));
  CHECK(cluster.job(one)->state == JobState::running);
  CHECK(cluster.job(two)->state == JobState::running);
  auto& inspector = cluster.inspector();
  REQUIRE(inspector.inject(0, Fault::exception));
  cluster.hold(0, {.step = 1});  // of the first of them that begins anew
  cluster.release(0);
  REQUIRE(eventually(kPatience, [&] { return !cluster.status().recent_failures.empty(); }));
  const std::string name = "batch " + std::to_string(two + 1) + " (jobs " + std::to_string(one) +
                           ", " + std::to_string(two) + ")";
  const auto told = cluster.status().recent_failures.front();
  CHECK(has(told, name + " failed: actor 0, "));
  CHECK(has(told, "its jobs begin anew, each alone"));
  const std::string file = scratch / ("logs/flight-batch-" + std::to_string(two + 1) + ".json");
  CHECK(has(told, file));
  REQUIRE(eventually(kPatience, [&] { return std::filesystem::exists(file); }));
  const auto record = nlohmann::json::parse(read_all(file));
  CHECK(record["batch"] == name);
  CHECK(record["epochs"].size() == 1);
  CHECK_FALSE(record["unfinished"].empty());
  for (const auto id : {one, two}) {
    const auto own = nlohmann::json::parse(inspector.failures(id).value())["failures"];
    REQUIRE(own.size() == 1);
    CHECK(own[0]["batch"] == name);
  }
  cluster.held(0);
  cluster.release(0);
  for (const auto id : {one, two}) {
    const auto result = cluster.client().wait(id, 600s);
    REQUIRE(result);
    CHECK(nlohmann::json::parse(result.value().report).count("batch") == 0);
  }
}

TEST_CASE("where nothing may compute as one, nothing does") {
  auto options = actors(1);
  options.max_jobs_together = 1;
  options.max_batch = 1;
  FaultCluster cluster(options);
  const auto first = held_job(cluster, tiny_job());
  auto job = tiny_job();
  job.may_batch = true;
  const auto one = cluster.submit(job);
  const auto two = cluster.submit(job);
  CHECK(cluster.client().cancel(first));
  for (const auto id : {one, two}) {
    const auto result = cluster.client().wait(id, 600s);
    REQUIRE(result);
    const auto report = nlohmann::json::parse(result.value().report);
    CHECK(report.count("batch") == 0);
    CHECK(report["not_batched"] == "the cluster was started with --max-batch 1");
    CHECK(cluster.job(id)->not_batched == report["not_batched"]);
  }
}
