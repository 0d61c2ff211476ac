#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/process/support/watched_stage.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

namespace troupe::testing {

using nlohmann::json;
using namespace std::chrono_literals;

TEST_CASE("injected faults happen, are told with their cause, and leave a flight record") {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "logs");
  WatchedStage stage(2, scratch / "logs");
  auto submission = demo_job(40);
  submission.parallelism = {.pp = 2};
  submission.detached = true;
  const auto fails_with = [&](Fault fault, const std::string& words) {
    CAPTURE(words);
    const auto job = stage.paused_job(submission);
    REQUIRE(stage.inspector().inject(1, fault));
    REQUIRE(stage.inspector().control(job, JobAction::resume));
    const auto result = stage.theatre.client().wait(job, 600s);
    REQUIRE_FALSE(result);
    CHECK(has(result.error().what, words));
    const std::string file = scratch / "logs/flight-job-" + std::to_string(job) + ".json";
    CHECK(has(result.error().what, file));
    const auto record = json::parse(read_all(file));
    CHECK(record["job"] == job);
    CHECK_FALSE(record["events"].empty());
    const auto failures = json::parse(stage.inspector().failures(job).value());
    REQUIRE(failures["failures"].size() == 1);
    CHECK(failures["failures"][0]["file"] == file);
    REQUIRE(stage.theatre.whole());
  };
  fails_with(Fault::exception, "this fault was injected");
  fails_with(Fault::not_finite, "not finite");

  const auto job = stage.paused_job(submission);
  REQUIRE(stage.inspector().inject(0, Fault::delay, 1.0));
  REQUIRE(stage.inspector().inject(1, Fault::stop, 0.5));
  REQUIRE(stage.inspector().control(job, JobAction::resume));
  CHECK(stage.theatre.client().wait(job, 600s));

  const auto restarts = stage.theatre.restarts();
  REQUIRE(stage.inspector().inject(0, Fault::kill));
  CHECK(eventually(kPatience, [&] { return stage.theatre.restarts() > restarts; }));
  CHECK(stage.theatre.restarts() == restarts + 1);
  REQUIRE(stage.theatre.whole());
  const auto said = stage.inspector().logs(0);
  REQUIRE(said);
  CHECK(said.value().lines.size() >= 3);  // began, ended, began
  bool told = false;
  for (const auto& line : said.value().lines)
    told = told || has(line, "SIGKILL");
  CHECK(told);
  // Nothing behind the last, unless something was said in between.
  CHECK(eventually(kPatience, [&] {
    const auto last = stage.inspector().logs(-1, 0, 500).value().last;
    return stage.inspector().logs(-1, last).value().lines.empty();
  }));
}

}  // namespace troupe::testing
