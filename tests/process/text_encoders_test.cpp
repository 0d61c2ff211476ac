#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/process/support/compare.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

// Text encoders on several actors of a replica, and what they keep of prompts.

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

Submission text_job(const std::string& model, const Parallelism& degrees) {
  Submission submission;
  submission.model = checkpoint(model);
  submission.parallelism = degrees;
  auto& request = submission.request;
  request.prompts = {"a red circle above a blue square", "a tree"};
  request.negative_prompt = "";
  request.guidance_scale = 4;
  request.height = request.width = 64;
  request.steps = 2;
  request.want_latents = true;
  return submission;
}

struct Texts {
  int encoded = 0;
  int from_cache = 0;

  bool operator==(const Texts&) const = default;
};

struct TextOutcome {
  Latents latents;
  Texts texts;
  json report;
};

template <class Cluster>
TextOutcome outcome_on(Cluster& cluster, const Submission& submission) {
  const auto result = cluster.run(submission);
  json report = json::parse(result.report);
  const json& prompts = report.at("prompts");
  return {result.latents.value(),
          {prompts.at("encoded").get<int>(), prompts.at("from_cache").get<int>()},
          std::move(report)};
}

}  // namespace

TEST_CASE("text encoders on several actors make what one makes, and send what was foreseen") {
  struct Split {
    const char* model;
    std::vector<int> places;  // of the encoders on three stages, sorted
    int texts;                // different ones × encoders
  };
  SharedCluster cluster(3);
  for (const auto& [model, places, texts] :
       {Split{"tiny-sd3", {0, 1, 2}, 9}, Split{"tiny-flux", {0, 1}, 4},
        Split{"tiny-hunyuan", {0, 1}, 6}}) {
    CAPTURE(model);
    const auto job = text_job(model, {.pp = 3});
    const auto one = outcome_on(cluster, text_job(model, {}));
    const auto many = outcome_on(cluster, job);
    auto found = many.report.at("plan").at("encoders").at(0).get<std::vector<int>>();
    std::ranges::sort(found);
    CHECK(found == places);
    CHECK(range_error(many.latents, one.latents) < 1e-5);
    CHECK(one.texts == Texts{texts, 0});
    CHECK(many.texts == Texts{texts, 0});
    check_sent(many.report, Foreseen(job));
    // Again, from what is kept; and with one new prompt.
    const auto again = outcome_on(cluster, job);
    CHECK(again.latents.data == many.latents.data);
    CHECK(again.texts == Texts{0, texts});
    check_sent(again.report, Foreseen(job));
    auto other = job;
    other.request.prompts = {"a cat", "a tree"};
    const auto mixed = outcome_on(cluster, other);
    const int each = static_cast<int>(places.size());
    CHECK(mixed.texts == Texts{each, texts - each});
    // A batch of one goes through all stages as it is: there the bits are the same.
    other.request.prompts = {"a house"};
    other.request.guidance_scale = 1;
    const auto split = outcome_on(cluster, other);
    other.parallelism = {};
    CHECK(outcome_on(cluster, other).latents.data == split.latents.data);
  }
}

TEST_CASE("other LoRAs and types are other texts; what a lost actor kept is encoded again") {
  FaultCluster cluster(actors(2));
  auto job = text_job("tiny-sd3", {.pp = 2});
  const auto first = outcome_on(cluster, job);
  CHECK(first.texts == Texts{9, 0});
  auto with_lora = job;
  with_lora.request.loras = {{.path = kFixtures + "lora/sd3.safetensors", .scale = 1}};
  const auto lora = outcome_on(cluster, with_lora);
  CHECK(lora.texts == Texts{9, 0});
  CHECK(lora.latents.data != first.latents.data);
  with_lora.request.loras.front().scale = 0.5;
  CHECK(outcome_on(cluster, with_lora).texts == Texts{9, 0});
  auto half = job;
  half.request.dtype = "bfloat16";
  CHECK(outcome_on(cluster, half).texts == Texts{9, 0});
  CHECK(outcome_on(cluster, job).texts == Texts{0, 9});
  // The first stage has T5, the second both CLIPs.
  const auto places = first.report.at("plan").at("encoders").at(0).get<std::vector<int>>();
  const auto lost = static_cast<int>(std::ranges::count(places, 1)) * 3;
  const auto restarts = cluster.restarts();
  kill(cluster.pids().at(first.report.at("actors").at(1).at("actor").get<std::size_t>()), SIGKILL);
  REQUIRE(eventually(kPatience, [&] { return cluster.restarts() > restarts; }));
  const auto after = outcome_on(cluster, job);
  CHECK(after.latents.data == first.latents.data);
  CHECK(after.texts.encoded >= lost);
  CHECK(after.texts.encoded + after.texts.from_cache == 9);
}
