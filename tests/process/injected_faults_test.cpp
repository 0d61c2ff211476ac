#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/process/support/journaled_controller.h"
#include "tests/process/support/watched_stage.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

namespace troupe::testing {

using nlohmann::json;
using namespace std::chrono_literals;

namespace {

/// The newest flight record of a job that failed or whose actor hung; on a disk that takes its time
/// it comes after the failure.
json record_of(Inspector& inspector, std::uint64_t job, const std::string& file) {
  REQUIRE(eventually(kPatience, [&] {
    const auto failures = json::parse(inspector.failures(job).value())["failures"];
    return !failures.empty() && failures.back().contains("file") && failures.back()["file"] == file;
  }));
  return json::parse(read_all(file));
}

}  // namespace

TEST_CASE("injected faults happen, are told with their cause, and leave a flight record") {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "logs");
  WatchedStage stage(2, scratch / "logs");
  auto submission = demo_job(40);
  submission.parallelism = {.pp = 2};
  submission.detached = true;
  // An actor without a job is armed all the same, and that is said.
  const std::string waits = "; it has no job now: this waits for its next one";
  const auto idle = stage.inspector().inject(1, Fault::delay, 0.1);
  REQUIRE(idle);
  CHECK(idle.value() == "actor 1 begins its next task 0.1 s later" + waits);
  const auto fails_with = [&](Fault fault, const std::string& words) {
    CAPTURE(words);
    const auto job = stage.paused_job(submission);
    const auto armed = stage.inspector().inject(1, fault);
    REQUIRE(armed);
    CHECK_FALSE(has(armed.value(), waits));
    REQUIRE(stage.inspector().control(job, JobAction::resume));
    const auto result = stage.cluster.client().wait(job, 600s);
    REQUIRE_FALSE(result);
    CHECK(has(result.error().what, words));
    const std::string file = scratch / "logs/flight-job-" + std::to_string(job) + ".json";
    CHECK(has(result.error().what, file));
    auto& inspector = stage.inspector();
    const auto record = record_of(inspector, job, file);
    CHECK(record["job"] == job);
    CHECK_FALSE(record["events"].empty());
    CHECK(json::parse(inspector.failures(job).value())["failures"].size() == 1);
    REQUIRE(stage.cluster.whole());
  };
  fails_with(Fault::exception, "this fault was injected");
  fails_with(Fault::not_finite, "not finite");

  // Who stands still for a while is not taken for dead, whichever way.
  const auto before = stage.cluster.restarts();
  const auto slow = stage.paused_job(submission);
  REQUIRE(stage.inspector().inject(0, Fault::delay, 1.0));
  REQUIRE(stage.inspector().inject(1, Fault::stop, 0.2));
  REQUIRE(stage.inspector().control(slow, JobAction::resume));
  const auto unharmed = stage.cluster.client().wait(slow, 600s);
  REQUIRE(unharmed);
  CHECK(json::parse(unharmed.value().report)["recoveries"].empty());
  CHECK(stage.cluster.restarts() == before);
  REQUIRE(stage.cluster.whole());

  const auto restarts = stage.cluster.restarts();
  REQUIRE(stage.inspector().inject(0, Fault::kill));
  CHECK(eventually(kPatience, [&] { return stage.cluster.restarts() > restarts; }));
  CHECK(stage.cluster.restarts() == restarts + 1);
  REQUIRE(stage.cluster.whole());
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

TEST_CASE("an actor whose device is lost says so and leaves; its job goes on in another process") {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "logs");
  WatchedStage stage(2, scratch / "logs");
  auto submission = demo_job(40);
  submission.request.method = "exact";
  submission.request.num_pipeline_patch = 1;
  submission.parallelism = {.pp = 2};
  const auto undisturbed = stage.cluster.run(submission);
  const std::string words = "its device cannot be used any more: error 700";
  const auto check = [&](const JobResult& result, std::uint32_t actor, const ClusterInfo& before) {
    CHECK(result.latents->data == undisturbed.latents->data);
    CHECK(result.pictures.at(0).png == undisturbed.pictures.at(0).png);
    const auto recoveries = json::parse(result.report)["recoveries"];
    REQUIRE(recoveries.size() == 1);
    const std::string cause = recoveries[0]["cause"];
    CAPTURE(cause);
    CHECK(has(cause, "actor " + std::to_string(actor) + " "));
    CHECK(has(cause, "exit code 4: troupe-actor " + std::to_string(actor) + ": " + words));
    REQUIRE(stage.cluster.whole());
    const auto after = stage.cluster.status();
    for (const auto& was : before.actors) {
      const auto& is = after.actors.at(was.id);
      CHECK((is.incarnation != was.incarnation) == (was.id == actor));
      CHECK((is.pid != was.pid) == (was.id == actor));
      CHECK(is.restarts == was.restarts + (was.id == actor ? 1 : 0));
    }
    CHECK(has(read_all(scratch / ("logs/actor-" + std::to_string(actor) + ".log")), words));
  };
  for (const std::uint32_t actor : {1, 0}) {
    CAPTURE(actor);
    ClusterInfo before;
    const auto result = stage.cluster.struck(submission, 3, [&](std::uint64_t) {
      before = stage.cluster.status();
      REQUIRE(stage.inspector().inject(actor, Fault::device_error));
      // Who goes on to its end may be gone before its answer is.
      const auto released = stage.inspector().inject(0, Fault::release);
      if (actor != 0) REQUIRE(released);
    });
    check(result, actor, before);
  }
  // In the first task of a job.
  const auto before = stage.cluster.status();
  REQUIRE(stage.inspector().inject(0, Fault::device_error));
  check(stage.cluster.run(submission), 0, before);
}

TEST_CASE("a work loop that stands still while its heartbeats go on is found by its progress") {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "logs");
  JournaledController controller(
      {"--task-deadline", "4", "--recoveries", "100", "--keep-logs", scratch / "logs"});
  auto client = controller.client();
  auto inspector = std::move(Inspector::connect(controller.endpoint(), kPatience).value());
  auto submission = demo_job(60);
  submission.request.method = "exact";
  submission.request.num_pipeline_patch = 1;
  submission.parallelism = {.pp = 2};
  const auto undisturbed = client.wait(client.submit(submission).value(), 600s);
  REQUIRE(undisturbed);
  // The delay is that of the task that it is held before.
  hold_actor(inspector, 1, {.step = 2});
  const auto job = client.submit(submission);
  REQUIRE(job);
  held_actor(client, 1);
  REQUIRE(inspector.inject(1, Fault::delay, 3600));
  release_actor(inspector, 1);
  const auto result = client.wait(job.value(), 600s);
  REQUIRE(result);
  CHECK(result.value().latents->data == undisturbed.value().latents->data);
  const auto recoveries = json::parse(result.value().report)["recoveries"];
  INFO(recoveries.dump());
  std::string cause;
  for (const auto& recovery : recoveries)
    if (has(recovery["cause"], "actor 1 ") && has(recovery["cause"], "made no progress for 4 s"))
      cause = recovery["cause"];
  REQUIRE(has(cause, "was killed by the controller (its work loop"));
  // What had happened was written down before it was killed.
  const auto begin = cause.find("/");
  const auto file = cause.substr(begin, cause.find(".json") + 5 - begin);
  CHECK(file.starts_with(scratch / "logs/flight-actor-1-pid-"));
  const auto record = record_of(inspector, job.value(), file);
  CHECK(record["job"] == job.value());
  CHECK(has(record["failure"], "made no progress"));
  CHECK_FALSE(record["unfinished"].empty());
  // And in its own log: what hung, and for how long.
  const auto words =
      "-- killed by the controller: its work loop made no progress for 4 s, during job " +
      std::to_string(job.value()) + " step ";
  const auto said = inspector.logs(1, 0, 1000);
  REQUIRE(said);
  const auto& lines = said.value().lines;
  const auto killed =
      std::ranges::find_if(lines, [&](const std::string& line) { return line.starts_with(words); });
  REQUIRE(killed != lines.end());
  REQUIRE(killed + 1 != lines.end());
  CHECK(*(killed + 1) == "-- the process ended: killed by signal 9 (SIGKILL)");
  CHECK(has(read_all(scratch / "logs/actor-1.log"), "\n" + *killed + "\n" + *(killed + 1) + "\n"));
}

}  // namespace troupe::testing
