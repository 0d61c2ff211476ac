#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "controller/deployments/memory_room.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

/// Another model of the same shapes: the demo with its transformer's last values changed.
class OtherModel {
 public:
  OtherModel() {
    fs::copy(demo_job().model, folder(), fs::copy_options::recursive);
    const fs::path weights = fs::path(folder()) / "transformer/diffusion_pytorch_model.safetensors";
    std::string bytes = read_all(weights);
    for (std::size_t at = bytes.size() - 1; at > bytes.size() - 40'000; at -= 4)
      bytes[at] = static_cast<char>(bytes[at] ^ 0x80);
    fs::remove(weights);
    std::ofstream(weights, std::ios::binary) << bytes;
  }
  std::string folder() const { return scratch_ / "other"; }

 private:
  Scratch scratch_;
};

/// Returns a job on pp 2, so that two actors have a part each.
Submission job_of(const std::string& model) {
  auto job = demo_job(2);
  job.parallelism = {.pp = 2};
  job.model = model;
  return job;
}

cluster::ClusterOptions holding(std::uint64_t bytes, int count = 2) {
  auto options = actors(count);
  options.memory_limit = bytes;
  return options;
}

struct Outcome {
  JobResult result;
  bool loaded = false;  // weights, before it began
};

Outcome watched(FaultCluster& cluster, const Submission& submission) {
  const auto loads = std::make_shared<std::atomic<bool>>(false);
  const auto id = cluster.submit(submission, [loads](const Progress& progress) {
    if (progress.phase == JobPhase::loading) *loads = true;
  });
  auto result = cluster.client().wait(id, 600s);
  REQUIRE(result);
  return {std::move(result.value()), loads->load()};
}

}  // namespace

TEST_CASE("memory for one model: two alternate, each is loaded anew, each is right") {
  const OtherModel other;
  const auto one = job_of(demo_job().model);
  const auto two = job_of(other.folder());
  const auto plan = plan_of(one);
  const auto need = memory_of(one);
  const auto beside = std::min(plan.memory[0].weights, plan.memory[1].weights);
  std::map<std::string, std::vector<float>> right;
  {
    // Room for both: each is loaded once.
    FaultCluster wide(holding(2 * need));
    for (const auto& job : {one, two}) {
      const auto first = watched(wide, job);
      CHECK(first.loaded);
      right[job.model] = first.result.latents->data;
    }
    CHECK(right[one.model] != right[two.model]);
    for (const auto& job : {one, two, one}) {
      const auto again = watched(wide, job);
      CHECK_FALSE(again.loaded);
      CHECK(again.result.latents->data == right[job.model]);
    }
  }
  REQUIRE(need + beside > need + need / 100);
  FaultCluster narrow(holding(need + need / 100));
  for (const auto& job : {one, two, one, two}) {
    const auto outcome = watched(narrow, job);
    CHECK(outcome.loaded);
    CHECK(outcome.result.latents->data == right[job.model]);
    CHECK_FALSE(watched(narrow, job).loaded);
  }
  CHECK(narrow.restarts() == 0);
}

TEST_CASE("what is in use is not taken away: the next job waits, and says for what") {
  const OtherModel other;
  auto longer = job_of(demo_job().model);
  longer.request.steps = 900;
  const auto two = job_of(other.folder());
  const auto need = std::max(memory_of(longer), memory_of(two));
  FaultCluster cluster(holding(need + need / 100));
  cluster.hold(0, {.step = 1});
  const auto running = cluster.submit(longer);
  cluster.held(0);
  const auto waiting = cluster.submit(two);
  const auto behind = cluster.submit(longer);
  CHECK(cluster.job(waiting)->state == JobState::queued);
  CHECK(has(cluster.job(waiting)->cause, "waits for 2 idle actors: 0 of 2 are"));
  CHECK(cluster.job(behind)->cause ==
        "waits behind job " + std::to_string(waiting) + ", which " + cluster.job(waiting)->cause);
  CHECK(cluster.job(running)->state == JobState::running);
  CHECK(cluster.job(running)->cause == "");
  CHECK(cluster.client().cancel(behind));
  CHECK(cluster.client().cancel(running));
  const auto result = cluster.client().wait(waiting, 600s);
  REQUIRE(result);
  CHECK(cluster.job(waiting)->cause == "");
}

TEST_CASE("jobs share a deployment as far as their memory goes") {
  auto job = job_of(demo_job().model);
  job.request.steps = 20;
  std::uint64_t enough_for_two = 0;
  for (const auto& need : cluster::needs_of(plan_of(job)))
    enough_for_two = std::max(enough_for_two, need.weights + 2 * need.working);
  FaultCluster cluster(holding(enough_for_two));
  cluster.hold(0, {.step = 1});
  const auto first = cluster.submit(job);
  cluster.held(0);
  const auto second = cluster.submit(job);
  const auto third = cluster.submit(job);
  CHECK(eventually(kPatience, [&] { return cluster.job(second)->state == JobState::running; }));
  CHECK(eventually(kPatience, [&] {
    const auto waiting = cluster.job(third);
    return waiting->state == JobState::queued && has(waiting->cause, "waits for memory: ");
  }));
  REQUIRE(cluster.inspector().control(second, JobAction::pause));
  CHECK(cluster.client().cancel(first));
  cluster.release(0);
  CHECK(cluster.client().wait(third, 600s));
  CHECK_FALSE(has_ended(cluster.job(second)->state));
  CHECK(cluster.client().cancel(second));
  CHECK(cluster.whole());
}

TEST_CASE("a job beyond every actor is refused with the numbers and what would do") {
  auto job = job_of(demo_job().model);
  const auto enough = memory_of(job);
  FaultCluster cluster(holding(enough));
  job.parallelism = {};
  REQUIRE(memory_of(job) > enough);
  const auto refused = cluster.client().submit(job);
  REQUIRE(!refused);
  const auto& what = refused.error().what;
  INFO(what);
  CHECK(refused.error().code == ErrorCode::out_of_memory);
  CHECK(has(what, "[memory] rank 0 needs "));
  CHECK(has(what, "(weights "));
  CHECK(has(what, "actor 0 may hold "));
  CHECK(has(what, "--pp 2 needs "));
  CHECK(cluster.client().jobs().value().empty());
  job.parallelism = {.pp = 2};
  CHECK(cluster.run(job).pictures.size() == 1);
}

TEST_CASE("text encoders stay where there is room, go before a model does, and change nothing") {
  const OtherModel other;
  const auto job = [](const std::string& model, const std::string& prompt) {
    auto job = demo_job(2);
    job.parallelism = {};
    job.model = model;
    job.request.prompts = {prompt};
    return job;
  };
  const auto here = demo_job().model;
  const auto need = cluster::needs_of(plan_of(job(here, ""))).front();
  REQUIRE(need.encoders > 0);
  const auto encoders = [](const Outcome& outcome) {
    const auto report = nlohmann::json::parse(outcome.result.report);
    return report.at("actors").at(0).at("encoder_bytes").get<std::uint64_t>();
  };
  const std::vector<std::string> prompts = {"a red circle", "a blue square", "a green star"};
  std::vector<std::vector<float>> right;
  {
    FaultCluster narrow(holding(need.total() + need.encoders - 1, 1));
    for (const auto& prompt : prompts) {
      const auto outcome = watched(narrow, job(here, prompt));
      CHECK(encoders(outcome) == 0);
      right.push_back(outcome.result.latents->data);
    }
  }
  // Room for both models, and for the encoders of one.
  FaultCluster cluster(holding(2 * need.weights + need.working + need.encoders, 1));
  for (int i = 0; i < 2; ++i) {
    const auto outcome = watched(cluster, job(here, prompts[i]));
    CHECK(encoders(outcome) == need.encoders);
    CHECK(outcome.result.latents->data == right[i]);
  }
  CHECK(encoders(watched(cluster, job(other.folder(), prompts[0]))) == need.encoders);
  const auto again = watched(cluster, job(here, prompts[2]));
  CHECK_FALSE(again.loaded);
  CHECK(encoders(again) == need.encoders);
  CHECK(again.result.latents->data == right[2]);
  // Nothing is encoded, so nothing is read.
  const auto known = watched(cluster, job(other.folder(), prompts[0]));
  CHECK_FALSE(known.loaded);
  CHECK(encoders(known) == 0);
  CHECK(cluster.restarts() == 0);
}

TEST_CASE("every actor keeps the text encoders that it runs, as many bytes as its plan says") {
  Submission job;
  job.model = checkpoint("tiny-sd3");
  job.parallelism = {.cfg = 2, .pp = 2};
  job.request.prompts = {"a cat"};
  job.request.steps = 2;
  job.request.height = job.request.width = 64;
  job.request.max_sequence_length = 12;
  const auto plan = plan_of(job);
  FaultCluster cluster(holding(4 * memory_of(job), 4));
  const auto report = nlohmann::json::parse(cluster.run(job).report);
  std::size_t keep = 0;
  for (std::size_t rank = 0; rank < plan.memory.size(); ++rank) {
    CHECK(report.at("actors")[rank].at("encoder_bytes") == plan.memory[rank].encoders);
    keep += plan.memory[rank].encoders > 0;
  }
  CHECK(keep > 1);
}
