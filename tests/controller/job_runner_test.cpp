#include "controller/jobs/job_runner.h"

#include <boost/asio/io_context.hpp>

#include "controller/cluster/drainer.h"
#include "controller/cluster/live_outside.h"
#include "controller/jobs/replan.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"
#include "transport/wire/done.h"

using namespace troupe;
using wire::JobState;

namespace {

/// A runner with one actor that is played here: it loads when it may, begins jobs, and never
/// finishes a task.
struct Stage {
  boost::asio::io_context io{1};
  control::IpcFolder folder;
  control::BlobStore blobs;
  control::Server server{io, server_at("control")};
  control::BlobServer blob_server{io, server_at("blobs"), blobs};
  cluster::Members members{"secret"};
  jobs::JobTable table{8, 8};
  cluster::LiveOutside outside{io, server, blob_server, blobs, {}};
  cluster::Deployments deployments{
      outside,
      members,
      {.on_ready = [this](const auto& deployment) { runner.deployment_ready(deployment); },
       .on_failed = [this](const auto& deployment,
                           const auto& failure) { runner.deployment_failed(deployment, failure); },
       .on_free = [this] { runner.start_queued(); },
       .on_stuck = [](cluster::ActorId) { FAIL("an actor is stuck"); }}};
  std::function<void(const wire::JobProgress&)> on_progress = [](const auto&) {};
  jobs::JobRunner runner{
      {.outside = outside,
       .members = members,
       .deployments = deployments,
       .table = table,
       .on_progress = [this](const auto&, wire::JobProgress progress) { on_progress(progress); },
       .on_finished = [](const auto&) {},
       .plan_again =
           [this](const jobs::JobEntry& job, int actors) {
             const auto fits = [this](const auto& plan) { return !deployments.shortage(plan); };
             return jobs::plan_again(job, test::sample_model(), actors,
                                     plan::machine_here("cpu", actors, 4),
                                     {members.memory_steps(), fits});
           }}};
  std::unique_ptr<control::Connection> actor;
  control::BlobStore at_actor;
  std::unique_ptr<control::BlobConnection> actor_blobs;
  bool loads = true;
  std::vector<wire::Kind> got;

  Stage() {
    members.spawned(members.add("here", "cpu").id, 77, 1);
    server.on_connect([this](const control::PeerInfo& peer) { return members.hello(peer); });
    control::ConnectionOptions options;
    options.endpoint = server.endpoint();
    options.incarnation = 77;
    options.hello.role = "actor";
    options.hello.attributes = {{"token", "secret"}};
    actor = std::make_unique<control::Connection>(io, options);
    actor->on_message([this](const wire::Header& header, auto) { play(header); });
    actor->start([](const wire::Welcome&) {},
                 [](const wire::Failure& failure) { FAIL(failure.what); });
    options.endpoint = blob_server.endpoint();
    actor_blobs = std::make_unique<control::BlobConnection>(io, options, at_actor);
    actor_blobs->start();
    REQUIRE(until([this] { return actor->connected() && actor_blobs->connected(); }));
  }

  control::ServerOptions server_at(const std::string& name) const {
    control::ServerOptions options;
    options.endpoint = folder.endpoint(name);
    return options;
  }

  void play(const wire::Header& header) {
    got.push_back(header.kind);
    if (header.kind == wire::Kind::load_stage && loads) actor->reply(header, wire::StageLoaded{});
    if (header.kind == wire::Kind::connect_groups) actor->reply(header, wire::GroupsConnected{});
    if (header.kind == wire::Kind::abort_epoch) actor->reply(header, wire::Done{});
  }

  bool until(const std::function<bool()>& holds) {
    const auto end = control::Clock::now() + std::chrono::seconds(10);
    while (!holds() && control::Clock::now() < end)
      io.run_one_for(std::chrono::milliseconds(50));
    return holds();
  }

  jobs::JobId submit(const std::string& prompt = "x") {
    wire::JobSpec spec;
    spec.request.prompts = {"x"};
    auto plan = plan::make_plan(test::sample_model(), spec.request, {});
    plan.request.prompts = {prompt};
    const auto id = table.add(spec, std::move(plan), 0, false, 0).value();
    runner.start_queued();
    return id;
  }

  /// The actor says that a task is done and that it left this.
  void done(jobs::JobId id, std::uint32_t task, const wire::BlobRef& blob) {
    const auto epoch = deployments.at(0).back()->epoch;
    wire::TaskDone done;
    done.epoch = epoch;
    done.job = id;
    done.task = task;
    done.blobs = {blob};
    runner.task_done(0, done);
  }

  bool reaches(jobs::JobId id, JobState state) {
    return until([&] { return table.find(id)->state == state; });
  }
  bool idle_again() {
    return until([&] { return members.idle().size() == 1; });
  }
};

}  // namespace

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
  stage.members.at(0).memory_limit = plan.memory[0].peak();
  stage.members.spawned(stage.members.add("here", "cpu").id, 78, 2);
  stage.members.at(1).memory_limit = plan.memory[0].peak() / 2;
  CHECK_FALSE(stage.deployments.shortage(plan));
  REQUIRE(stage.members.lost(stage.members.at(0).peer));
  CHECK_FALSE(stage.deployments.shortage(plan));
  const auto job = stage.submit();
  CHECK(stage.table.find(job)->state == JobState::queued);
  CHECK(stage.table.find(job)->waits_for.starts_with("waits for "));
  stage.members.at(0).closed = true;
  stage.runner.start_queued();
  CHECK(stage.table.find(job)->failure.code == wire::FailureCode::out_of_memory);
}

TEST_CASE("places that are drained are filled by spares of unequal size, each with what it holds") {
  Stage stage;
  const auto enter = [&](std::uint64_t limit) {
    const auto id = stage.members.add("here", "cpu").id;
    stage.members.spawned(id, 100 + id, 1);
    control::PeerInfo peer;
    peer.id = 1000 + id;
    peer.incarnation = 100 + id;
    peer.hello.attributes = {{"token", "secret"}};
    REQUIRE_FALSE(stage.members.hello(peer));
    stage.members.at(id).memory_limit = limit;
  };
  enter(0);
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
  cluster::Drainer drainer({stage.outside, stage.members, stage.deployments, stage.runner});
  CHECK(drainer.drain({0, 1}, /*now=*/true) ==
        "2 actors are being drained; job " + std::to_string(job) + " will go on elsewhere");
  CHECK(deployment->actor_of_rank == std::vector<cluster::ActorId>{3, 2});
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
  stage.members.at(1).memory_limit = need - 1;
  stage.members.at(0).draining = true;
  const auto deployment = stage.deployments.in_use(0);
  CHECK_FALSE(stage.runner.all_fit_elsewhere(*deployment));
  stage.members.at(1).memory_limit = need;
  CHECK(stage.runner.all_fit_elsewhere(*deployment));
  stage.table.find(job)->spec.elastic = false;
  CHECK_FALSE(stage.runner.all_fit_elsewhere(*deployment));
}

TEST_CASE("progress that cannot be sent fails the job with that cause") {
  Stage stage;
  bool torn = false;
  stage.on_progress = [&](const wire::JobProgress& progress) {
    torn = progress.phase == "text";
    if (torn) throw wire::WireError(wire::WireErrc::not_sendable, "too long");
  };
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::failed));
  CHECK(torn);
  CHECK(stage.table.find(job)->failure.what == "its progress cannot be sent: too long");
  CHECK(stage.idle_again());
}

TEST_CASE("a cancel while the model loads does not wait for it") {
  Stage stage;
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
  CHECK(stage.table.find(job)->blobs.empty());
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
