#include "controller/supervision/supervisor.h"

#include <csignal>
#include <string>
#include <vector>

#include "controller/hosts/process_host.h"
#include "tests/controller/runner_stage.h"
#include "tests/support/doctest.h"
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

  /// What is said of an actor whose lost link has it killed, and that is found to have ended so.
  std::string told(const cluster::ExitCause& cause) {
    supervisor.kill(0, "lost: the link was closed");
    CHECK(processes.reasons == std::vector<std::string>{"lost: the link was closed"});
    supervisor.exited(0, 77, cause);
    CHECK(given_up.empty());
    REQUIRE(notes.size() == 1);
    return notes.front();
  }
};

}  // namespace

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
  CHECK(stage.members.at(0).state == cluster::ActorState::dead);
  CHECK(stage.given_up.size() == 1);
  REQUIRE(stage.notes.size() == 1);
  CHECK(has(stage.notes.front(), "lost: no word for 5 s"));
  CHECK(has(stage.notes.front(), "has not ended"));
  // It ends after all: nobody is told of it again.
  stage.supervisor.exited(0, 77, {.by_signal = true, .number = SIGKILL, .log = {}});
  CHECK(stage.notes.size() == 1);
}
