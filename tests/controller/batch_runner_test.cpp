#include <algorithm>
#include <map>

#include "controller/jobs/job_runner.h"
#include "tests/controller/runner_stage.h"

using namespace troupe;
using Stage = test::RunnerStage;

TEST_CASE(
    "of a batch each job gets its own latents and warnings; when it fails, each tries again") {
  Stage stage;
  for (const std::size_t prompts : {2, 1, 1})
    stage.join_queue(prompts);
  stage.runner.start_queued();
  constexpr jobs::JobId kBatch = 4;
  for (const jobs::JobId job : {1, 2, 3}) {
    REQUIRE(stage.reaches(job, JobState::running));
    CHECK(stage.runner.run_of(job) == kBatch);
    CHECK_FALSE(stage.runner.pause(job));
  }
  CHECK(stage.runner.name_of(kBatch) == "batch 4 (jobs 1, 2, 3)");
  CHECK(stage.table.find(2)->waits_for == "computes with jobs 1, 3");
  std::map<jobs::JobId, std::vector<std::string>> warnings;
  std::map<jobs::JobId, std::string> latents;
  stage.on_progress = [&](const wire::JobProgress& progress) {
    auto& own = warnings[progress.job];
    own.insert(own.end(), progress.warnings.begin(), progress.warnings.end());
    for (const auto& blob : progress.blobs) {
      CHECK(blob.shape.front() * 2 == static_cast<std::int64_t>(blob.bytes));
      latents[progress.job] += *stage.blobs.bytes(blob.id);
    }
  };
  wire::TaskDone done;
  done.epoch = stage.deployments.at(0).back()->epoch;
  done.job = kBatch;
  done.task = 0;
  done.warnings = {{1, "is cut"}, {3, "is cut"}, {{}, "prompt 3 is dear"}, {99, "is nobody's"}};
  stage.runner.task_done(0, done);
  using Texts = std::vector<std::string>;
  CHECK(warnings[1] == Texts{"prompt 1 is cut", "prompt 3 is dear"});
  CHECK(warnings[2] == Texts{"prompt 3 is dear"});
  CHECK(warnings[3] == Texts{"prompt 0 is cut", "prompt 3 is dear"});
  stage.runner.task_done(0, done);  // another replica has found the same
  CHECK(warnings[1].size() + warnings[2].size() + warnings[3].size() == 5);
  stage.runner.cancel(2, "not wanted");
  CHECK(stage.table.find(2)->state == JobState::cancelled);
  CHECK(stage.table.find(1)->waits_for == "computes with job 3");
  stage.done(kBatch, 1, {"latents", stage.at_actor.add("aabbccdd"), 8, {4, 1}});
  REQUIRE(stage.until([&] { return latents.size() == 2; }));
  CHECK(latents[1] == "aabb");
  CHECK(latents[3] == "dd");
  CHECK(stage.blobs.size() == 2);

  stage.runner.task_failed(0, {.epoch = done.epoch,
                               .job = kBatch,
                               .task = 1,
                               .failure = {wire::FailureCode::out_of_memory, "no room"}});
  CHECK(stage.table.batches().empty());
  using Failing = std::vector<std::pair<jobs::JobId, jobs::JobId>>;
  CHECK(stage.failed == Failing{{kBatch, kBatch}});
  const double charged = stage.table.find(3)->cost.actor_seconds;
  CHECK(charged > 0);
  CHECK(stage.table.find(1)->cost.actor_seconds == doctest::Approx(2 * charged));
  for (const jobs::JobId job : {1, 3}) {
    REQUIRE(stage.reaches(job, JobState::running));
    CHECK(stage.runner.run_of(job) == job);
    REQUIRE(stage.table.find(job)->course.recoveries.size() == 1);
    CHECK(stage.table.find(job)->course.recoveries[0].cause.starts_with(
        "batch 4 (jobs 1, 3) failed: actor 0, "));
    CHECK(warnings[job].back().starts_with("it begins anew, alone: batch 4"));
  }
  const auto again = stage.deployments.at(0).back()->epoch;
  const auto told = warnings[3].size();
  wire::TaskDone repeated;
  repeated.epoch = again;
  repeated.job = 3;
  repeated.warnings = {{0, "is cut"}, {0, "is odd"}};
  stage.runner.task_done(0, repeated);
  CHECK(warnings[3].size() == told + 1);
  CHECK(stage.table.find(3)->outcome.warnings ==
        Texts{"prompt 0 is cut", "prompt 3 is dear", "prompt 0 is odd"});
  stage.runner.task_failed(
      0, {.epoch = again, .job = 3, .task = 1, .failure = {wire::FailureCode::internal, "odd"}});
  CHECK(stage.table.find(3)->state == JobState::failed);
  CHECK(stage.table.find(3)->cost.actor_seconds > charged);
  CHECK(stage.failed == Failing{{kBatch, kBatch}, {3, 3}});
  std::uint64_t last = 0;
  std::vector<std::string> lines;
  for (const auto& line : stage.recorder.lines(0, 100, last))
    lines.push_back(line.text);
  const auto said = [&](const std::string& text) {
    return std::count(lines.begin(), lines.end(), text) == 1;
  };
  CHECK(said("batch 4 (jobs 1, 2, 3): begins as one"));
  CHECK(said("batch 4 (jobs 1, 2, 3): begins in epoch 1"));
  CHECK_FALSE(has_ended(stage.table.find(1)->state));
}

TEST_CASE("who sees own jobs alone computes with these alone, and no other job is named to it") {
  Stage stage;
  const auto hand_in = [&](const std::string& user, bool apart) {
    auto& job = *stage.table.find(stage.join_queue(1));
    job.client.user = user;
    job.client.apart = apart;
  };
  hand_in("alice", true);
  hand_in("bob", true);
  hand_in("carol", false);
  hand_in("alice", true);
  hand_in("dave", false);
  stage.runner.start_queued();
  REQUIRE(stage.reaches(4, JobState::running));
  const auto waits_for = [&](jobs::JobId job) { return stage.table.find(job)->waits_for; };
  CHECK(stage.runner.name_of(stage.runner.run_of(1)) == "batch 6 (jobs 1, 4)");
  CHECK(waits_for(1) == "computes with job 4");
  CHECK(stage.runner.run_of(2) == 2);
  CHECK(stage.table.find(2)->batching.why_not ==
        "no other job that may batch waited when it began");
  CHECK(waits_for(3) == "computes with job 5");
}

TEST_CASE("who waits behind another user's job is not told its number, unless it may know it") {
  Stage stage;
  for (const char* user : {"bob", "bob", "bob", "bob", "alice", "alice", "bob"}) {
    auto& job = *stage.table.find(stage.join_queue(1));
    job.spec.may_batch = false;
    job.client.user = user;
    job.client.apart = true;
  }
  stage.runner.start_queued();
  REQUIRE(stage.reaches(4, JobState::running));
  const auto waits_for = [&](jobs::JobId job) {
    return stage.runner.waits_for(*stage.table.find(job));
  };
  const std::string full = "waits for one of 4 jobs on its actors to end";
  CHECK(waits_for(5) == full);
  CHECK(waits_for(6) == "waits behind job 5, which " + full);
  CHECK(waits_for(7) == "waits behind another client's job, which " + full);
}

TEST_CASE("a batch that all its jobs have left stops, and its actors are free") {
  Stage stage;
  for (int i = 0; i < 2; ++i)
    stage.join_queue(1);
  stage.runner.start_queued();
  REQUIRE(stage.reaches(1, JobState::running));
  REQUIRE(stage.until([&] { return stage.got.back() == wire::Kind::run_tasks; }));
  for (const jobs::JobId job : {1, 2}) {
    stage.runner.cancel(job, "not wanted");
    CHECK(stage.table.find(job)->state == JobState::cancelled);
  }
  CHECK(stage.members.idle().empty());  // what was issued drains
  wire::TaskDone done;
  done.epoch = stage.deployments.at(0).back()->epoch;
  const auto issued = stage.runner.dispatcher().queue(0);
  CHECK_FALSE(issued.empty());
  for (const auto& [job, task] : issued) {
    done.job = job;
    done.task = task;
    stage.runner.task_done(0, done);
  }
  CHECK(stage.idle_again());
  CHECK(stage.table.batches().empty());
}

TEST_CASE("jobs that end with their batch say under which number they ran") {
  Stage stage;
  for (int i = 0; i < 2; ++i)
    stage.join_queue(1);
  stage.runner.start_queued();
  REQUIRE(stage.runner.run_of(1) == 3);
  stage.runner.fail_all({wire::FailureCode::cancelled, "the cluster stops"});
  CHECK(stage.failed == std::vector<std::pair<jobs::JobId, jobs::JobId>>{{1, 3}, {2, 3}});
}

TEST_CASE("an idle actor that cannot hold a job keeps none from a batch") {
  Stage stage;
  const auto small = stage.members.add("here", "cpu").id;
  stage.members.spawned(small, 78, 2);
  control::PeerInfo peer;
  peer.id = 1000;
  peer.incarnation = 78;
  peer.hello.attributes = {{"token", "secret"}};
  REQUIRE_FALSE(stage.members.hello(peer));
  bool holds = true;
  SUBCASE("too small") {
    stage.members.limit_memory(small, 1);
    holds = false;
  }
  SUBCASE("large enough") {}
  for (int i = 0; i < 2; ++i)
    stage.join_queue(1);
  CHECK(stage.deployments.places_for(stage.table.find(1)->plan) == (holds ? 2 : 1));
  stage.runner.start_queued();
  CHECK(stage.runner.run_of(1) == (holds ? 1 : 3));
}

TEST_CASE("elastic jobs that were planned anew while they waited compute as one, too") {
  Stage stage;
  wire::JobSpec spec;
  spec.elastic = true;
  spec.parallelism.pp = 2;
  for (int i = 0; i < 2; ++i)
    stage.join_queue(1, spec);
  stage.runner.places_lost("an actor is gone");
  REQUIRE(stage.table.find(2)->plan.degrees.world() == 1);
  stage.runner.start_queued();
  CHECK(stage.runner.run_of(1) == 3);
  CHECK(stage.runner.run_of(2) == 3);
}
