#include "controller/jobs/job_runner.h"
#include "tests/controller/runner_stage.h"
#include "transport/control/after.h"

// A job that is cancelled, and what its actors still have of it.

using namespace troupe;

namespace {

struct WorkingStage : test::RunnerStage {
  /// The actor does all that it was given, and leaves nothing.
  void work() {
    for (const auto& [job, task] : runner.dispatcher().queue(0)) {
      wire::TaskDone done;
      done.epoch = deployments.at(0).back()->epoch;
      done.job = job;
      done.task = task;
      runner.task_done(0, done);
    }
  }
  std::uint32_t last_task(jobs::JobId job) {
    return static_cast<std::uint32_t>(
               schedule::make_task_graph(table.find(job)->plan).tasks.size()) -
           1;
  }
};

}  // namespace

TEST_CASE("a cancel while the model loads does not wait for it") {
  WorkingStage stage;
  stage.loads = false;
  const auto job = stage.submit();
  REQUIRE(stage.until([&] { return !stage.got.empty(); }));
  stage.runner.cancel(job, "not wanted any more");
  CHECK(stage.table.find(job)->state == JobState::cancelled);
  CHECK(stage.table.find(job)->failure.what == "not wanted any more");
  REQUIRE(stage.idle_again());
  stage.loads = true;
  CHECK(stage.reaches(stage.submit(), JobState::running));
}

TEST_CASE("a cancelled job does not keep its actors for blobs that are on their way") {
  WorkingStage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  // From now on no blob comes, and none is known not to: until its deadline, two minutes later.
  stage.actor_blobs.reset();
  REQUIRE(stage.until([&] { return !stage.blob_server.connected(77); }));
  stage.done(job, 1, {"preview", 1, 5, {}});
  stage.done(job, 2, {"boundary", 2, 5, {}});
  stage.done(job, stage.last_task(job), {"picture", 3, 5, {}});
  stage.runner.cancel(job, "not wanted any more");
  // What lies at the actor is done first.
  CHECK(stage.table.find(job)->state == JobState::running);
  stage.work();
  CHECK(stage.runner.dispatcher().drained(job));
  REQUIRE(stage.reaches(job, JobState::cancelled));
  CHECK(stage.table.find(job)->failure.what == "not wanted any more");
  CHECK(stage.count(wire::Kind::end_job) == 1);
  CHECK(stage.blobs.size() == 0);
  REQUIRE(stage.idle_again());
  CHECK(stage.reaches(stage.submit(), JobState::running));
  CHECK(stage.count(wire::Kind::abort_epoch) == 0);
}

TEST_CASE(
    "a cancelled job's blobs are let go of, whether they come or its actor has dropped them") {
  WorkingStage stage;
  stage.ends = false;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  std::size_t told = 0;
  stage.on_progress = [&](const wire::JobProgress& progress) { told += progress.blobs.size(); };
  stage.done(job, 1, {"preview", stage.at_actor.add("rough"), 5, {}});
  stage.done(job, stage.last_task(job), {"picture", 4711, 5, {}});
  stage.runner.cancel(job, "not wanted any more");
  stage.work();
  REQUIRE(stage.until([&] { return stage.count(wire::Kind::end_job) == 1; }));
  // Both have come, or not, by the time that this one has.
  bool later = false;
  stage.blob_server.fetch(
      77, stage.at_actor.add("later"), 5, std::chrono::seconds(60),
      [&](const control::BlobResult& result) { later = result.bytes != nullptr; });
  REQUIRE(stage.until([&] { return later; }));
  CHECK(stage.table.find(job)->state == JobState::running);
  CHECK(told == 0);
  CHECK(stage.blobs.size() == 0);
  CHECK(stage.count(wire::Kind::abort_epoch) == 0);
}

TEST_CASE("a cancelled job that is alone does not wait for the task in hand: its epoch ends") {
  Stage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  stage.runner.cancel(job, "not wanted any more");
  CHECK(stage.table.find(job)->state == JobState::running);
  REQUIRE(stage.reaches(job, JobState::cancelled));
  CHECK(stage.table.find(job)->failure.what == "not wanted any more");
  REQUIRE(stage.until([&] { return stage.count(wire::Kind::abort_epoch) == 1; }));
  CHECK(stage.count(wire::Kind::end_job) == 0);
  CHECK(stage.reaches(stage.submit(), JobState::running));
  CHECK(stage.count(wire::Kind::load_stage) == 1);  // the weights have stayed
}

TEST_CASE("a cancelled job that shares its actors drains, and does not cost others their step") {
  WorkingStage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  const auto other = stage.submit();
  REQUIRE(stage.reaches(other, JobState::running));
  stage.runner.cancel(job, "not wanted any more");
  bool later = false;
  control::after(stage.io, std::chrono::milliseconds(1500), [&] { later = true; });
  REQUIRE(stage.until([&] { return later; }));
  CHECK(stage.table.find(job)->state == JobState::running);
  CHECK(stage.count(wire::Kind::abort_epoch) == 0);
  stage.work();
  REQUIRE(stage.reaches(job, JobState::cancelled));
  CHECK(stage.table.find(other)->state == JobState::running);
  CHECK(stage.count(wire::Kind::abort_epoch) == 0);
}
