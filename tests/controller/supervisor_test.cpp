#include "controller/supervision/supervisor.h"

#include <csignal>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "controller/hosts/process_host.h"
#include "tests/controller/runner_stage.h"
#include "tests/support/doctest.h"
#include "tests/support/no_stages.h"
#include "tests/support/text.h"

using namespace troupe;
using troupe::testing::has;

namespace {

/// Starts nothing and kills nothing: the test tells how a process ended.
class PlayedProcessHost final : public cluster::ProcessHost {
 public:
  std::uint32_t start(const wire::StartProcess&) override { return 4242; }
  bool signal(const wire::ProcessOwner&, int) override { return true; }
  void end(const wire::ProcessOwner&, const std::string& why) override { reasons.push_back(why); }
  const cluster::LineLog& lines(std::uint32_t) override { return lines_; }
  std::size_t running() const override { return 1; }

  std::vector<std::string> reasons;

 private:
  cluster::LineLog lines_;
};

struct Watched : test::RunnerStage {
  PlayedProcessHost processes;
  std::vector<std::string> notes;
  std::vector<std::string> given_up;
  cluster::Supervisor supervisor{{.environment = environment,
                                  .members = members,
                                  .deployments = deployments,
                                  .runner = runner,
                                  .options = {.kill_patience = 0.1}}};

  Watched() {
    supervisor.listen({.note = [this](const std::string& text) { notes.push_back(text); },
                       .on_given_up = [this](const std::string& why) { given_up.push_back(why); }});
    live.use([this](cluster::ActorId) -> cluster::ProcessHost& { return processes; });
  }

  /// Returns the note about an actor that is killed because its link was lost, and that ends with
  /// `cause`.
  std::string told(const cluster::ExitCause& cause) {
    supervisor.kill(0, "lost: the link was closed");
    CHECK(processes.reasons == std::vector<std::string>{"lost: the link was closed"});
    supervisor.exited(0, 77, cause);
    CHECK(given_up.empty());
    REQUIRE(notes.size() == 1);
    return notes.front();
  }
};

/// A world whose time the test lets pass, and in which spawns may fail.
class PlayedWorld final : public testing::NoStages {
 public:
  double now() const override { return now_; }
  std::uint64_t random() override { return ++random_; }
  void after(double seconds, std::function<void()> action) override {
    actions_.emplace(now_ + seconds, std::move(action));
  }
  bool send_frame(control::PeerId, std::string) override { return true; }
  void request_frame(control::PeerId, std::string, control::Milliseconds,
                     control::ReplyHandler) override {}
  void drop(control::PeerId, const std::string&) override {}
  std::optional<double> last_progress(control::PeerId) const override { return progress; }
  std::uint32_t spawn(const cluster::Actor&, std::uint64_t) override {
    if (failing_spawns-- > 0) throw std::runtime_error("the program is away");
    return 4242;
  }
  void kill(cluster::ActorId, const std::string& why) override { kills.push_back(why); }

  void pass(double seconds) {
    const double end = now_ + seconds;
    while (!actions_.empty() && actions_.begin()->first <= end) {
      auto next = actions_.extract(actions_.begin());
      now_ = next.key();
      next.mapped()();
    }
    now_ = end;
  }

  double progress = 0;
  int failing_spawns = 0;
  std::vector<std::string> kills;

 private:
  double now_ = 0;
  std::uint64_t random_ = 1'000;
  std::multimap<double, std::function<void()>> actions_;
};

struct Played : test::RunnerStage {
  PlayedWorld world;
  std::vector<std::string> notes;
  cluster::Supervisor supervisor{{.environment = world,
                                  .members = members,
                                  .deployments = deployments,
                                  .runner = runner,
                                  .options = {.task_deadline = 10}}};

  Played() {
    supervisor.listen({.note = [this](const std::string& text) { notes.push_back(text); },
                       .on_given_up = [](const std::string&) {}});
  }
};

}  // namespace

TEST_CASE("an actor without work is not taken to hang, however long it is silent") {
  Played stage;
  stage.supervisor.watch();
  stage.world.pass(1000);
  CHECK(stage.world.kills.empty());
  // From when it got something to do it has the whole deadline.
  stage.members.leave_epoch(0, 1);
  stage.world.pass(9);
  CHECK(stage.world.kills.empty());
  stage.world.pass(2);
  REQUIRE(stage.world.kills.size() >= 1);
  CHECK(stage.world.kills.front() == "its work loop made no progress for 10 s");
}

TEST_CASE("an actor that gets on is not taken to hang, however long it takes") {
  Played stage;
  stage.supervisor.watch();
  stage.members.leave_epoch(0, 1);
  for (int i = 0; i < 20; ++i) {
    stage.world.progress = stage.world.now();
    stage.world.pass(9);
  }
  CHECK(stage.world.kills.empty());
}

TEST_CASE(
    "a program that is away for a moment costs a second, not the place; then it is given up") {
  const cluster::ExitCause death{.by_signal = true, .number = SIGKILL, .log = {}};
  for (const int failing : {1, 2, 3}) {
    CAPTURE(failing);
    Played stage;
    stage.world.failing_spawns = failing;
    stage.world.pass(100);  // it has lived for long
    stage.supervisor.exited(0, 77, death);
    stage.world.pass(failing - 0.5);
    CHECK(stage.members.at(0).restarts == 0);
    CHECK(stage.notes.back() == "the program is away");
    stage.world.pass(1);
    CHECK(stage.members.at(0).closed == (failing == 3));
    CHECK(stage.members.at(0).restarts == (failing == 3 ? 0 : 1));
  }
}

TEST_CASE("who is killed since its link was lost is said to be") {
  Watched stage;
  const auto text = stage.told(cluster::ExitCause{.by_signal = true, .number = SIGKILL, .log = {}});
  CHECK(text == "actor 0 was killed by the controller (lost: the link was closed)");
}

TEST_CASE("an end that was on its way when the kill came is told as what it was") {
  for (const int number : {SIGSEGV, SIGTERM}) {
    Watched stage;
    const auto text =
        stage.told(cluster::ExitCause{.by_signal = true, .number = number, .log = {}});
    CHECK(has(text, "killed by signal " + std::to_string(number)));
    CHECK_FALSE(has(text, "by the controller"));
  }
  Watched stage;
  const auto text =
      stage.told(cluster::ExitCause{.by_signal = false, .number = 3, .log = {"out of paint"}});
  CHECK(has(text, "ended with exit code 3"));
  CHECK(has(text, "out of paint"));
}

TEST_CASE("the place of a process that does not end after its kill is given up") {
  Watched stage;
  CHECK(stage.supervisor.lost(stage.members.at(0).peer, "no word for 5 s"));
  REQUIRE(stage.until([&] { return stage.members.at(0).closed; }));
  CHECK(stage.members.at(0).state == ActorState::dead);
  CHECK(stage.given_up.size() == 1);
  REQUIRE(stage.notes.size() == 1);
  CHECK(has(stage.notes.front(), "lost: no word for 5 s"));
  CHECK(has(stage.notes.front(), "has not ended"));
  // It ends after all: nobody is told of it again.
  stage.supervisor.exited(0, 77, {.by_signal = true, .number = SIGKILL, .log = {}});
  CHECK(stage.notes.size() == 1);
}
