// Handlers that are called a second time with the same, at once or when much has happened since.
#include <csignal>

#include "controller/hosts/process_host.h"
#include "controller/supervision/supervisor.h"
#include "tests/controller/runner_stage.h"

using namespace troupe;

namespace {

const cluster::ExitCause kKilled{.by_signal = true, .number = SIGKILL, .log = {}};

class IdleProcessHost final : public cluster::ProcessHost {
 public:
  std::uint32_t start(const wire::StartProcess&) override { return ++spawned; }
  bool signal(const wire::ProcessOwner&, int) override { return true; }
  void end(const wire::ProcessOwner&, const std::string&) override {}
  const cluster::LineLog& lines(std::uint32_t) override { return lines_; }
  std::size_t running() const override { return 1; }

  std::uint32_t spawned = 0;

 private:
  cluster::LineLog lines_;
};

struct SupervisedStage : test::RunnerStage {
  IdleProcessHost processes;
  std::vector<std::string> notes;
  int given_up = 0;
  cluster::Supervisor supervisor{{.environment = environment,
                                  .members = members,
                                  .deployments = deployments,
                                  .runner = runner}};

  SupervisedStage() {
    supervisor.listen({.note = [this](const std::string& text) { notes.push_back(text); },
                       .on_given_up = [this](const std::string&) { ++given_up; }});
    live.use([this](cluster::ActorId) -> cluster::ProcessHost& { return processes; });
  }
  void turn() {
    while (io.poll_one() > 0) {
    }
  }
};

control::PeerInfo hello_with_token(std::uint64_t incarnation, control::PeerId peer) {
  control::PeerInfo info;
  info.id = peer;
  info.incarnation = incarnation;
  info.hello.attributes = {{"token", "secret"}};
  return info;
}

}  // namespace

TEST_CASE("the end of a process is told twice, and again when another one has its place") {
  SupervisedStage stage;
  const auto peer = stage.members.at(0).peer;
  stage.supervisor.exited(0, 77, kKilled);
  stage.supervisor.exited(0, 77, kKilled);
  CHECK(stage.notes == std::vector<std::string>{"actor 0 was killed by signal 9 (SIGKILL)"});
  CHECK(stage.processes.spawned == 1);
  const auto next = stage.members.at(0).incarnation;
  REQUIRE(next != 77);
  stage.supervisor.kill(0, "it hangs");
  stage.supervisor.exited(0, 77, kKilled);
  CHECK_FALSE(stage.supervisor.lost(peer, "late"));
  CHECK(stage.members.hello(hello_with_token(77, peer + 5)).has_value());
  CHECK(stage.members.at(0).state == ActorState::starting);
  CHECK(stage.members.at(0).incarnation == next);
  // What a dead one's end said did not take the reason of the living one's.
  stage.supervisor.exited(0, next, kKilled);
  REQUIRE(stage.notes.size() == 2);
  CHECK(stage.notes.back() == "actor 0 was killed by the controller (it hangs)");
}

TEST_CASE("a place that is given up is so once") {
  SupervisedStage stage;
  stage.members.close(0);
  for (int i = 0; i < 2; ++i)
    stage.supervisor.exited(0, 77, kKilled);
  CHECK(stage.given_up == 1);
  CHECK(stage.notes.size() == 1);
  CHECK_FALSE(stage.members.exited(0, 77, "once more"));
}

TEST_CASE("a hello by another link does not take the one that stands") {
  SupervisedStage stage;
  const auto peer = stage.members.at(0).peer;
  CHECK(stage.members.hello(hello_with_token(77, peer + 5)) == "actor 0 has a link already");
  CHECK_FALSE(stage.members.hello(hello_with_token(77, peer)).has_value());
  CHECK(stage.members.at(0).peer == peer);
}

TEST_CASE("a task is done once, whatever it left; a deployment's readiness begins a job once") {
  SupervisedStage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  stage.runner.deployment_ready(stage.deployments.in_use(0));
  std::size_t told = 0;
  stage.on_progress = [&](const wire::JobProgress& progress) { told += progress.blobs.size(); };
  const wire::BlobRef preview{"preview", stage.at_actor.add("rough"), 5, {}};
  stage.done(job, 1, preview);
  stage.done(job, 1, preview);  // while the first one's blob is on its way
  REQUIRE(stage.until([&] { return told > 0; }));
  stage.done(job, 1, preview);
  const wire::BlobRef other{"preview", stage.at_actor.add("other"), 5, {}};
  stage.done(job, 2, other);
  REQUIRE(stage.until([&] { return told > 1; }));
  stage.turn();
  CHECK(told == 2);
  CHECK(stage.blobs.size() == 2);
  CHECK(stage.count(wire::Kind::begin_job) == 1);
}

TEST_CASE("a failure ends an epoch once") {
  SupervisedStage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  const auto epoch = stage.deployments.in_use(0)->epoch;
  const wire::TaskFailed failed{.epoch = epoch,
                                .job = job,
                                .task = 1,
                                .failure = {wire::FailureCode::internal, "an exception"},
                                .collateral = false};
  stage.runner.task_failed(0, failed);
  const auto next = stage.deployments.at(0).back()->epoch;
  CHECK(next == epoch + 1);
  stage.runner.task_failed(0, failed);
  CHECK(stage.deployments.at(0).back()->epoch == next);
  CHECK(stage.failed.size() == 1);
  REQUIRE(stage.idle_again());
  stage.runner.task_failed(0, failed);
  CHECK(stage.deployments.at(0).back()->epoch == next);
  CHECK(stage.count(wire::Kind::abort_epoch) == 1);
}

TEST_CASE("a job is cancelled once, also when it has ended") {
  SupervisedStage stage;
  const auto job = stage.submit();
  REQUIRE(stage.reaches(job, JobState::running));
  stage.runner.cancel(job, "first");
  stage.runner.cancel(job, "second");
  stage.runner.fail_all({wire::FailureCode::internal, "enough"});
  stage.runner.cancel(job, "third");
  CHECK(stage.table.find(job)->failure.what != "second");
  CHECK(stage.table.find(job)->failure.what != "third");
}
