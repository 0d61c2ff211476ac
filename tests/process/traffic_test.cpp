#include <nlohmann/json.hpp>

#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct TrafficWay {
  const char* method;
  const char* kv;
  int patches;
  int warmup;
  const char* exchange = "stale";
};

/// Seven rows of three tokens and five heads: nothing divides anything.
Submission job(const TrafficWay& way, const Parallelism& mix) {
  Submission submission;
  submission.model = odd_model().folder();
  submission.parallelism = mix;
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree", "a cat"};
  request.height = 112;
  request.width = 48;
  request.steps = 5;
  request.max_sequence_length = 12;
  request.method = way.method;
  request.kv = way.kv;
  request.num_pipeline_patch = way.patches;
  request.warmup_steps = way.warmup;
  request.exchange = way.exchange;
  return submission;
}

std::vector<BytesByRole> measured(const JobResult& result) {
  std::vector<BytesByRole> all;
  const auto report = nlohmann::json::parse(result.report);
  for (const auto& actor : report.at("actors")) {
    std::uint64_t sum = 0;
    for (const auto& [role, bytes] : sent_by(actor))
      sum += bytes;
    CHECK(actor.at("tensor_bytes_sent") == sum);
    all.push_back(sent_by(actor));
  }
  return all;
}

std::vector<BytesByRole> predicted(const Submission& submission) {
  const Foreseen foreseen(submission);
  std::vector<BytesByRole> all;
  for (const auto& rank : foreseen.traffic)
    all.push_back(rank.sent);
  return all;
}

std::string text_of(const BytesByRole& bytes) {
  return nlohmann::json(bytes).dump();
}

}  // namespace

TEST_CASE("every rank sends what the formulas say, to the byte, by kind of group") {
  const TrafficWay ways[] = {
      {"exact", "stale", 1, 0},          {"pipefusion", "stale", 3, 1},
      {"pipefusion", "predict", 3, 0},   {"pipefusion", "predict", 7, 3},
      {"distrifusion", "stale", 3, 1},   {"distrifusion", "predict", 4, 0},
      {"distrifusion", "predict", 3, 3}, {"pipefusion", "stale", 2, 5},
      {"distrifusion", "stale", 1, 1},   {"distrifusion", "stale", 4, 1, "naive"}};
  auto mixes = axes_and_pairs();
  mixes.insert(mixes.end(), {{.dp = 2, .cfg = 2, .pp = 2},
                             {.dp = 3, .ulysses = 2},
                             {.dp = 2, .ring = 2, .tp = 2},
                             {.cfg = 2, .pp = 3},
                             {.pp = 4, .vae = 3},
                             {.ulysses = 2, .ring = 2, .vae = 2}});
  std::map<std::string, int> seen;
  std::size_t place = 0;
  for (const auto& mix : mixes) {
    for (const auto& way : ways) {
      // A third of all, unless all are asked for.
      if (!full_matrix() && ++place % 3 != 0) continue;
      const auto submission = job(way, mix);
      const auto where = std::string(way.method) + " " + way.kv + ", " +
                         std::to_string(way.patches) + " patches, warm-up " +
                         std::to_string(way.warmup) + " at " + name_of(mix);
      CAPTURE(where);
      const auto sent = measured(shared_cluster().run(submission));
      const auto formula = predicted(submission);
      REQUIRE(sent.size() == formula.size());
      for (std::size_t rank = 0; rank < sent.size(); ++rank) {
        CAPTURE(rank);
        CHECK(text_of(sent[rank]) == text_of(formula[rank]));
        for (const auto& [role, bytes] : sent[rank])
          ++seen[role];
      }
    }
  }
  // `skip` is HunyuanDiT's, in around_traffic_test.cpp.
  for (const std::string role : {"caption", "edge", "feedback", "cfg", "ulysses", "ring", "tp",
                                 "heads", "stage", "rows", "vae"}) {
    CAPTURE(role);
    CHECK(seen[role] > 5);
  }
}

TEST_CASE("half precision halves what is sent of hidden states, K,V and text, not latents") {
  const Parallelism mix = {.cfg = 2, .pp = 2, .ring = 2};
  auto submission = job({"pipefusion", "predict", 3, 1}, mix);
  const auto whole = measured(shared_cluster().run(submission));
  submission.request.dtype = "bfloat16";
  const auto half = measured(shared_cluster().run(submission));
  const auto formula = predicted(submission);
  for (std::size_t rank = 0; rank < half.size(); ++rank) {
    CHECK(text_of(half[rank]) == text_of(formula[rank]));
    for (const std::string role : {"edge", "ring"}) {
      if (whole[rank].contains(role)) CHECK(half[rank].at(role) * 2 == whole[rank].at(role));
    }
    for (const std::string role : {"feedback", "cfg", "stage"}) {
      if (whole[rank].contains(role)) CHECK(half[rank].at(role) == whole[rank].at(role));
    }
  }
}
