#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/same_picture.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

// Stages whose blocks are listed instead of split by cost.

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr int kBlocks = 28;

const RandomModel& model() {
  static const RandomModel model({.blocks = kBlocks, .heads = 2, .head_dim = 8});
  return model;
}

Submission small_job() {
  Submission submission;
  submission.model = model().folder();
  auto& request = submission.request;
  request.prompts = {"a red circle"};
  request.height = 80;
  request.width = 48;
  request.steps = 4;
  request.seed = 5;
  request.max_sequence_length = 12;
  return submission;
}

Parallelism listed(const std::vector<int>& stages) {
  return {.pp = static_cast<int>(stages.size()), .stages = stages};
}

std::vector<int> sizes_of(const JobResult& result) {
  const auto report = nlohmann::json::parse(result.report);
  std::vector<int> sizes;
  for (const auto& run : report.at("plan").at("stages"))
    sizes.push_back(run.at(1).get<int>() - run.at(0).get<int>());
  return sizes;
}

}  // namespace

TEST_CASE("listed stages make one actor's picture, exact and by patches") {
  struct Way {
    const char* method;
    const char* kv;
    int patches;
  };
  const Way ways[] = {{"exact", "stale", 1},
                      {"pipefusion", "stale", 4},
                      {"pipefusion", "predict", 3},
                      {"distrifusion", "stale", 3}};
  Seen seen;
  for (const auto& way : ways) {
    auto submission = small_job();
    submission.request.method = way.method;
    submission.request.kv = way.kv;
    submission.request.num_pipeline_patch = way.patches;
    SamePicture picture(shared_cluster(), submission, seen);
    for (const std::vector<int>& stages :
         {std::vector<int>{7, 7, 7, 7}, {1, 1, 25, 1}, {20, 8}, {3, 4, 5, 6, 10}})
      CHECK(sizes_of(picture.check_at(listed(stages))) == stages);
    auto several = listed({9, 19});
    several.cfg = several.ulysses = 2;
    CHECK(sizes_of(picture.check_at(several)) == several.stages);
  }
  MESSAGE(seen.text());
}

TEST_CASE("troupe submit --stages 7,7,7,7 writes one actor's picture") {
  const auto submission = small_job();
  const auto& request = submission.request;
  const auto expected = decode_png(shared_cluster().run(submission).pictures.at(0).png);
  const Scratch scratch;
  const auto png = scratch / "out.png";
  Command command({"submit",
                   "--connect",
                   shared_cluster().endpoint(),
                   "--model",
                   submission.model,
                   "--prompt",
                   request.prompts[0],
                   "--height",
                   "80",
                   "--width",
                   "48",
                   "--steps",
                   "4",
                   "--seed",
                   "5",
                   "--max-sequence-length",
                   "12",
                   "--pp",
                   "4",
                   "--stages",
                   "7,7,7,7",
                   "--output",
                   png},
                  scratch.path.string());
  const int code = command.wait(std::chrono::minutes(5));
  CAPTURE(command.err());
  REQUIRE(code == 0);
  CHECK(level_error(read_png(png), expected) <= 1);
}

TEST_CASE("stages that are not the blocks are refused") {
  auto submission = small_job();
  const auto refusal = [&](const std::vector<int>& stages) {
    submission.parallelism = listed(stages);
    return shared_cluster().refusal(submission).what;
  };
  CHECK(refusal({7, 7, 7}).find("28") != std::string::npos);
  CHECK(refusal({7, 7, 7, 8}).find("28") != std::string::npos);
  CHECK(!refusal({28, 0}).empty());
}
