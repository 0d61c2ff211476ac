#include "controller/jobs/job_runner.h"

#include <nlohmann/json.hpp>

#include "controller/supervision/drainer.h"
#include "tests/controller/runner_stage.h"

using namespace troupe;
using Stage = test::RunnerStage;

TEST_CASE("a job too large to be told fails alone: its actor stays and takes the next one") {
  Stage stage;
  const std::string too_long(wire::kMaxPayload + 1, 'x');
  for (int round = 0; round < 2; ++round) {
    const auto job = stage.submit(too_long);
    REQUIRE(stage.reaches(job, JobState::failed));
    CHECK(stage.table.find(job)->failure.what.starts_with("the job cannot begin: "));
    REQUIRE(stage.idle_again());
    CHECK(stage.actor->connected());
  }
  const auto next = stage.submit();
  CHECK(stage.reaches(next, JobState::running));
  CHECK(stage.until([&] { return stage.got.back() == wire::Kind::run_tasks; }));
  // Also on actors that have the model already.
  stage.runner.fail_all({wire::FailureCode::cancelled, "enough"});
  CHECK(stage.table.find(next)->state == JobState::failed);
}

TEST_CASE("a job waits for the memory of an actor that is lost and comes again") {
  Stage stage;
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto plan = plan::make_plan(test::sample_model(), request, {});
  stage.members.limit_memory(0, plan.memory[0].peak());
  stage.members.spawned(stage.members.add("here", "cpu").id, 78, 2);
  stage.members.limit_memory(1, plan.memory[0].peak() / 2);
  CHECK_FALSE(stage.deployments.shortage(plan));
  REQUIRE(stage.members.lost(stage.members.at(0).peer));
  CHECK_FALSE(stage.deployments.shortage(plan));
  const auto job = stage.submit();
  CHECK(stage.table.find(job)->state == JobState::queued);
  CHECK(stage.table.find(job)->waits_for.starts_with("waits for "));
  stage.members.close(0);
  stage.runner.start_queued();
  CHECK(stage.table.find(job)->failure.code == wire::FailureCode::out_of_memory);
}

TEST_CASE("places that are drained are filled by spares of unequal size, each with what it holds") {
  Stage stage;
  const auto enter = [&](std::optional<std::uint64_t> limit) {
    const auto id = stage.members.add("here", "cpu").id;
    stage.members.spawned(id, 100 + id, 1);
    control::PeerInfo peer;
    peer.id = 1000 + id;
    peer.incarnation = 100 + id;
    peer.hello.attributes = {{"token", "secret"}};
    REQUIRE_FALSE(stage.members.hello(peer));
    stage.members.limit_memory(id, limit);
  };
  enter(std::nullopt);
  wire::JobSpec spec;
  spec.request.prompts = {"x"};
  spec.request.height = spec.request.width = 512;
  spec.parallelism.pp = 2;
  auto plan = plan::make_plan(test::sample_model(), spec.request, spec.parallelism);
  const auto small = plan.memory[0].peak();
  const auto large = plan.memory[1].peak();
  REQUIRE(small < large);  // it decodes
  const auto job = stage.table.add(spec, std::move(plan), 0, false, 0).value();
  stage.runner.start_queued();
  const auto deployment = stage.deployments.in_use(0);
  REQUIRE(deployment);
  REQUIRE(deployment->actor_of_rank == std::vector<cluster::ActorId>{0, 1});
  enter(large);
  enter(small);
  cluster::Drainer drainer({stage.environment, stage.members, stage.deployments, stage.runner});
  CHECK(drainer.drain({0, 1}, /*now=*/true) ==
        "2 actors are being drained; job " + std::to_string(job) + " will go on elsewhere");
  CHECK(deployment->actor_of_rank == std::vector<cluster::ActorId>{3, 2});
  enter(small);
  CHECK(drainer.drain({4}, /*now=*/false) == "1 actor is being drained");  // of this order's alone
  drainer.stop();
}

TEST_CASE("an elastic job is not sent away where no plan of it fits what is left") {
  Stage stage;
  wire::JobSpec spec;
  spec.request.prompts = {"x"};
  spec.elastic = true;
  auto plan = plan::make_plan(test::sample_model(), spec.request, {});
  const auto need = plan.memory[0].peak();
  const auto job = stage.table.add(spec, std::move(plan), 0, false, 0).value();
  stage.runner.start_queued();
  REQUIRE(stage.deployments.in_use(0));
  stage.members.spawned(stage.members.add("here", "cpu").id, 78, 2);
  stage.members.limit_memory(1, need - 1);
  stage.members.drain(0);
  const auto deployment = stage.deployments.in_use(0);
  CHECK_FALSE(stage.runner.all_fit_elsewhere(*deployment));
  stage.members.limit_memory(1, need);
  CHECK(stage.runner.all_fit_elsewhere(*deployment));
  stage.table.find(job)->spec.elastic = false;
  CHECK_FALSE(stage.runner.all_fit_elsewhere(*deployment));
}

TEST_CASE("progress that cannot be sent fails the job with that cause") {
  Stage stage;
  bool torn = false;
  stage.on_progress = [&](const wire::JobProgress& progress) {
    torn = progress.phase == JobPhase::text;
    if (torn) throw wire::WireError(wire::WireErrc::not_sendable, "too long");
  };
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::failed));
  CHECK(torn);
  CHECK(stage.table.find(job)->failure.what == "its progress cannot be sent: too long");
  CHECK(stage.idle_again());
}

TEST_CASE("what a failed job left does not stay, and of previews only the last few do") {
  Stage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  const auto decode = schedule::make_task_graph(stage.table.find(job)->plan).tasks.size() - 1;
  std::vector<std::string> warnings;
  std::uint32_t told = 0;
  stage.on_progress = [&](const wire::JobProgress& progress) {
    if (!progress.blobs.empty()) ++told;
    warnings.insert(warnings.end(), progress.warnings.begin(), progress.warnings.end());
  };
  for (std::uint32_t task = 1; task <= 5; ++task) {
    stage.done(job, task, {"preview", stage.at_actor.add("rough"), 5, {}});
    REQUIRE(stage.until([&] { return told == task; }));
    CHECK(stage.blobs.size() == std::min(task, 4u));
  }
  stage.done(job, 6, {"preview", 4711, 5, {}});
  REQUIRE(stage.until([&] { return !warnings.empty(); }));
  CHECK(warnings[0].starts_with("preview did not arrive from its actor: "));
  CHECK(stage.table.find(job)->state == JobState::running);
  stage.done(job, static_cast<std::uint32_t>(decode),
             {"picture", stage.at_actor.add("fine"), 4, {}});
  REQUIRE(stage.until([&] { return stage.blobs.size() == 5; }));
  stage.runner.fail_all({wire::FailureCode::cancelled, "enough"});
  CHECK(stage.blobs.size() == 4);  // the previews, for those who still fetch them
  CHECK(stage.table.find(job)->outcome.blobs.empty());
}

TEST_CASE(
    "what a job's tasks find again after a loss is told once, and stands in the report once") {
  Stage stage;
  std::vector<std::string> told;
  stage.on_progress = [&](const wire::JobProgress& progress) {
    told.insert(told.end(), progress.warnings.begin(), progress.warnings.end());
  };
  const auto job = stage.submit();
  const auto finish_issued = [&] {
    const auto kept = stage.deployments.at(0);
    wire::TaskDone done;
    done.epoch = kept.empty() ? 0 : kept.back()->epoch;
    for (const auto& [id, task] : stage.runner.dispatcher().queue(0)) {
      done.job = id;
      done.task = task;
      done.warnings.clear();
      if (task == 0) done.warnings = {{0, "is cut"}, {{}, "negative prompt is cut"}};
      stage.runner.task_done(0, done);
    }
  };
  REQUIRE(stage.reaches(job, JobState::running));
  REQUIRE(stage.until([&] { return !stage.runner.dispatcher().queue(0).empty(); }));
  finish_issued();
  using Texts = std::vector<std::string>;
  CHECK(told == Texts{"prompt 0 is cut", "negative prompt is cut"});
  stage.runner.interrupt_jobs(stage.deployments.at(0).back(), "a peer is gone");
  REQUIRE(stage.until([&] {
    finish_issued();
    return has_ended(stage.table.find(job)->state);
  }));
  CHECK(stage.table.find(job)->state == JobState::succeeded);
  CHECK(told.size() == 3);
  CHECK(told.back() == "it begins anew after a loss: a peer is gone");
  const auto report = nlohmann::json::parse(stage.table.find(job)->outcome.report);
  CHECK(report["warnings"] == nlohmann::json{"prompt 0 is cut", "negative prompt is cut",
                                             "it went on after a loss: a peer is gone"});
  CHECK(report["recoveries"].size() == 1);
}

TEST_CASE("a failure of a job's beginning is not laid to a task") {
  Stage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  const auto epoch = stage.deployments.at(0).back()->epoch;
  stage.runner.task_failed(0, {.epoch = epoch,
                               .job = job,
                               .task = 0,
                               .failure = {wire::FailureCode::internal, "no room"},
                               .collateral = false,
                               .begin = true});
  CHECK(stage.table.find(job)->failure.what == "actor 0, begin: no room");
  const auto other = stage.submit();
  REQUIRE(stage.reaches(other, JobState::running));
  const auto later = stage.deployments.at(0).back()->epoch;
  stage.runner.task_failed(0, {.epoch = later,
                               .job = other,
                               .task = 4000,
                               .failure = {wire::FailureCode::internal, "odd"}});
  CHECK(stage.table.find(other)->failure.what == "actor 0: odd");
}

TEST_CASE("a failure that only names a peer waits for that one's end, however late it is noticed") {
  Stage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  const auto& recoveries = stage.table.find(job)->course.recoveries;
  const auto lose_peer = [&] {
    stage.runner.task_failed(0, {.epoch = stage.deployments.at(0).back()->epoch,
                                 .job = job,
                                 .task = 1,
                                 .failure = {wire::FailureCode::lost, "rank 1 is gone"},
                                 .collateral = true});
  };
  SUBCASE("all answer: there was none") {
    lose_peer();
    REQUIRE(stage.until([&] { return !recoveries.empty(); }));
    CHECK(recoveries[0].cause.ends_with("rank 1 is gone"));
  }
  SUBCASE("one does not answer any more") {
    stage.actor.reset();
    lose_peer();
    stage.until([&, end = control::Clock::now() + std::chrono::seconds(1)] {
      return control::Clock::now() > end;
    });
    CHECK(recoveries.empty());
    REQUIRE(stage.members.exited(0, 77, "was killed"));
    stage.runner.actor_lost(0, "was killed");
    REQUIRE(recoveries.size() == 1);
    CHECK(recoveries[0].cause.starts_with("actor 0 (pid 1) was killed"));
  }
}

TEST_CASE("of two kinds of actors: who waits for more than a kind has left fails with the cause") {
  Stage stage;
  const auto place = [&](const std::string& device) {
    const auto id = stage.members.add("here", device).id;
    stage.members.spawned(id, 100 + id, 1);  // no hello yet
    return id;
  };
  place("cpu");
  const auto last_gpu = [&] {
    place("cuda:0");
    return place("cuda:1");
  }();
  const auto wanting = [&](int pp, bool elastic) {
    wire::JobSpec spec;
    spec.request.prompts = {"x"};
    spec.parallelism.pp = pp;
    spec.elastic = elastic;
    const auto plan = plan::make_plan(test::sample_model(), spec.request, spec.parallelism);
    return stage.table.add(spec, plan, 0, false, 0).value();
  };
  const auto rigid = wanting(2, false);
  const auto elastic = wanting(2, true);
  stage.runner.start_queued();
  CHECK(stage.table.find(rigid)->waits_for ==
        "waits for 2 idle actors of one kind: 1 of 2 on cpu, 0 of 2 on cuda are");
  const auto give_up = [&](cluster::ActorId id) {
    stage.members.start_failed(id);
    stage.members.close(id);
    stage.runner.places_lost("actor " + std::to_string(id) + " is gone");
  };
  give_up(last_gpu);
  CHECK(stage.table.find(rigid)->state == JobState::queued);  // two on the CPU may come
  give_up(1);
  // One of each kind is left.
  CHECK(stage.table.find(rigid)->state == JobState::failed);
  CHECK(stage.table.find(rigid)->failure.what ==
        "actor 1 is gone: the job needs 2 actors, 1 is here");
  CHECK(stage.table.find(elastic)->plan.degrees.world() == 1);
  CHECK(stage.reaches(elastic, JobState::running));
}

TEST_CASE(
    "who needs more actors than are left waits for others to join, and nobody waits behind it") {
  Stage stage(/*rejoin=*/600);
  const auto other = stage.members.add("there", "cpu", /*remote=*/true).id;
  stage.members.spawned(other, 100, 1);  // no hello yet
  wire::JobSpec spec;
  spec.parallelism.pp = 2;
  const auto rigid = stage.join_queue(1, spec);
  const auto small = stage.join_queue(1);
  stage.runner.start_queued();
  CHECK(stage.table.find(rigid)->waits_for == "waits for 2 idle actors: 1 of 2 are");
  CHECK(stage.table.find(small)->state == JobState::queued);
  stage.members.drain(other);
  stage.runner.places_lost("actor 1 on there is drained");
  const auto waits_for = [&] { return stage.runner.waits_for(*stage.table.find(rigid)); };
  CHECK(waits_for() ==
        "waits for 2 actors, for 600 s at most: 1 is here (actor 1 on there is drained)");
  REQUIRE(stage.reaches(small, JobState::running));
  CHECK(stage.table.find(rigid)->state == JobState::queued);
  CHECK(stage.table.count(JobState::queued) == 1);
  SUBCASE("another comes") {
    stage.members.reopen(other);
    stage.runner.start_queued();
    CHECK(waits_for() ==
          "waits for 2 actors, for 600 s at most: 2 are here, some still starting (actor 1 on "
          "there is drained)");
    stage.members.limit_memory(other, 1000);
    stage.runner.start_queued();
    CHECK(waits_for() ==
          "waits for 2 actors, for 600 s at most: 2 are here, too small for it (actor 1 on there "
          "is drained)");
    stage.members.limit_memory(other, 1ull << 40);
    stage.runner.start_queued();
    CHECK(waits_for().starts_with("waits for 2 idle actors: "));
  }
  SUBCASE("it is cancelled meanwhile") {
    stage.runner.cancel(rigid, "not wanted");
    CHECK(stage.table.find(rigid)->state == JobState::cancelled);
    stage.runner.start_queued();
    CHECK(waits_for() == "");
  }
  SUBCASE("the cluster stops") {
    stage.runner.fail_all({wire::FailureCode::cancelled, "the cluster was stopped"});
    CHECK(stage.table.find(rigid)->failure.what == "the cluster was stopped");
  }
}

TEST_CASE(
    "who has waited for actors until the deadline fails, or goes on with those that are left") {
  Stage stage(/*rejoin=*/0.5);
  wire::JobSpec spec;
  spec.parallelism.pp = 2;
  const auto rigid = stage.join_queue(1, spec);
  spec.elastic = true;
  const auto elastic = stage.join_queue(1, spec);
  for (const auto id : {rigid, elastic})
    stage.runner.await_actors(id, "its controller was started again");
  CHECK(stage.table.queue().empty());
  REQUIRE(stage.reaches(rigid, JobState::failed));
  CHECK(stage.table.find(rigid)->failure.what ==
        "its controller was started again: the job needs 2 actors, 1 is here, and no others came "
        "within 0.5 s (start --rejoin-deadline)");
  CHECK(stage.reaches(elastic, JobState::running));
}

TEST_CASE("what is not finite pauses a job that is to stop there, and fails it when it is let go") {
  Stage stage;
  std::vector<std::string> warnings;
  stage.on_progress = [&](const wire::JobProgress& progress) {
    warnings.insert(warnings.end(), progress.warnings.begin(), progress.warnings.end());
  };
  const auto job = stage.submit();
  const auto watches = [&] { return stage.count(wire::Kind::control_job); };
  // Told with its beginning, each time it begins.
  CHECK(stage.runner.stop_at_not_finite(job));
  REQUIRE(stage.reaches(job, JobState::running));
  REQUIRE(stage.until([&] { return watches() == 1; }));
  const auto tells = [&](const std::string& what) {
    stage.runner.task_failed(0, {.epoch = stage.deployments.at(0).back()->epoch,
                                 .job = job,
                                 .task = 0,
                                 .failure = {wire::FailureCode::internal, what},
                                 .goes_on = true});
  };
  tells("this is not finite");
  tells("nor is that");
  CHECK(stage.runner.paused(job));
  CHECK(stage.runner.met(job) == "actor 0, text: this is not finite");
  CHECK(warnings == std::vector<std::string>{"it is paused: actor 0, text: this is not finite"});
  CHECK_FALSE(stage.runner.stop_at_not_finite(job));
  const auto finish_issued = [&] {
    wire::TaskDone done;
    done.epoch = stage.deployments.at(0).back()->epoch;
    for (const auto& [id, task] : stage.runner.dispatcher().queue(0)) {
      done.job = id;
      done.task = task;
      stage.runner.task_done(0, done);
    }
  };
  SUBCASE("let go") {
    CHECK(stage.runner.resume(job));
    CHECK(stage.table.find(job)->state == JobState::failed);
    CHECK(stage.table.find(job)->failure.what == "actor 0, text: this is not finite");
    CHECK(stage.idle_again());
  }
  SUBCASE("all of it was issued already") {
    while (stage.runner.step(job))
      finish_issued();
    REQUIRE(stage.until([&] {
      finish_issued();
      return stage.runner.dispatcher().complete(job);
    }));
    CHECK(stage.table.find(job)->state == JobState::running);
    CHECK(stage.runner.resume(job));
    CHECK(stage.table.find(job)->state == JobState::failed);
  }
  SUBCASE("cancelled") {
    stage.runner.cancel(job, "enough");
    REQUIRE(stage.until([&] {
      finish_issued();
      return has_ended(stage.table.find(job)->state);
    }));
    CHECK(stage.table.find(job)->state == JobState::cancelled);
  }
  SUBCASE("a loss takes away what was to be looked at, and it goes on to the next") {
    stage.runner.interrupt_jobs(stage.deployments.at(0).back(), "a peer is gone");
    CHECK(stage.runner.paused(job));
    CHECK(stage.runner.met(job).empty());
    REQUIRE(stage.until([&] { return watches() == 2; }));
    CHECK(stage.runner.resume(job));
    CHECK(stage.table.find(job)->state == JobState::running);
    tells("this is not finite again");
    CHECK(stage.runner.met(job) == "actor 0, text: this is not finite again");
  }
}

TEST_CASE("who is to stop at what is not finite may be told while it runs, and joins no batch") {
  Stage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  CHECK(stage.runner.pause(job));
  CHECK(stage.count(wire::Kind::control_job) == 0);
  CHECK(stage.runner.stop_at_not_finite(job));
  CHECK_FALSE(stage.runner.paused(job));
  CHECK(stage.until([&] { return stage.count(wire::Kind::control_job) == 1; }));
  stage.runner.cancel(job, "enough");
  stage.runner.fail_all({wire::FailureCode::cancelled, "enough"});
  const auto first = stage.join_queue(1);
  const auto second = stage.join_queue(1);
  CHECK(stage.runner.stop_at_not_finite(second));
  stage.runner.start_queued();
  REQUIRE(stage.reaches(first, JobState::running));
  CHECK(stage.runner.run_of(first) == first);
  CHECK(stage.runner.run_of(second) == second);
}
