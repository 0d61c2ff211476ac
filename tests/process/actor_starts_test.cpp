#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// Actors that cannot start, or not just now.

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// Returns this process's children that were not there before.
std::vector<pid_t> newer_than(const std::vector<pid_t>& before) {
  auto now = children_of(getpid());
  std::erase_if(now, [&](pid_t pid) { return std::ranges::find(before, pid) != before.end(); });
  return now;
}

/// An actor program that now and then stands still before it says hello.
class MuteAtTimes {
 public:
  MuteAtTimes() {
    std::ofstream(path()) << "#!/bin/sh\nif [ -e " << scratch_ / "mute"
                          << " ]; then\n  echo $$ > " << scratch_ / "pid"
                          << ".$$\n  mv " << scratch_ / "pid"
                          << ".$$ " << scratch_ / "pid"
                          << "\n  exec sleep 600\nfi\nexec " << actors(1).actor_program
                          << " \"$@\"\n";
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  std::string path() const { return scratch_ / "actor"; }
  /// Makes actors that are started from now on stand still, until `speak`.
  void mute() const { std::ofstream(scratch_ / "mute").flush(); }
  void speak() const { std::filesystem::remove(scratch_ / "mute"); }
  /// One that stands still, once there is one.
  pid_t muted() const {
    REQUIRE(eventually(kPatience, [&] { return std::filesystem::exists(scratch_ / "pid"); }));
    return static_cast<pid_t>(std::stol(read_all(scratch_ / "pid")));
  }

 private:
  Scratch scratch_;
};

}  // namespace

TEST_CASE("an actor that cannot start is said at once, and nothing remains") {
  auto options = actors(2);
  options.actor_program = "/bin/false";
  {
    cluster::Cluster cluster(options);
    std::string why;
    try {
      cluster.wait_ready(kPatience);
    } catch (const std::exception& error) {
      why = error.what();
    }
    INFO(why);
    CHECK(has(why, "cannot start"));
    CHECK(has(why, "exit code 1"));
    auto client = Client::connect(cluster.endpoint(), kPatience);
    REQUIRE(client);
    const auto job = client.value().submit(tiny_job());
    if (job) {
      const auto result = client.value().wait(job.value(), kPatience);
      REQUIRE(!result);
      CHECK(has(result.error().what, "cannot start"));
    } else {
      CHECK(has(job.error().what, "cannot start"));
    }
  }
  options.actor_program = "/nonexistent/troupe-actor";
  CHECK_THROWS_WITH_AS(cluster::Cluster{options}, doctest::Contains("/nonexistent/troupe-actor"),
                       std::runtime_error);
}

TEST_CASE("an actor that never says hello is given up after the start deadline") {
  Scratch scratch;
  auto options = actors(1);
  options.actor_program = scratch / "mute-actor";
  std::ofstream(options.actor_program) << "#!/bin/sh\nexec sleep 600\n";
  std::filesystem::permissions(options.actor_program, std::filesystem::perms::owner_all);
  options.start_deadline = 1s;
  cluster::Cluster cluster(options);
  CHECK_THROWS_WITH_AS(cluster.wait_ready(kPatience), doctest::Contains("no hello within 1 s"),
                       std::runtime_error);
}

TEST_CASE("one slow actor of a gang: the start fails as a whole, and the others are torn down") {
  Scratch scratch;
  auto options = actors(3);
  const std::string program = options.actor_program;
  options.actor_program = scratch / "now-and-then";
  // The first one to come stands still, the others are what they should be.
  std::ofstream(options.actor_program)
      << "#!/bin/sh\nif mkdir " << scratch / "first"
      << " 2> /dev/null; then\n  exec sleep 600\nfi\nexec " << program << " \"$@\"\n";
  std::filesystem::permissions(options.actor_program, std::filesystem::perms::owner_all);
  options.start_deadline = 3s;
  const auto before = children_of(getpid());
  {
    cluster::Cluster cluster(options);
    CHECK_THROWS_WITH_AS(cluster.wait_ready(kPatience), doctest::Contains("no hello within 3 s"),
                         std::runtime_error);
  }
  CHECK(gone(newer_than(before)));
}

TEST_CASE("kill -9 of a process that has not said hello: at a start it is the end of all") {
  const MuteAtTimes program;
  program.mute();
  const auto before = children_of(getpid());
  auto options = actors(2);
  options.actor_program = program.path();
  {
    cluster::Cluster cluster(options);
    kill(program.muted(), SIGKILL);
    const auto why = message_of([&] { cluster.wait_ready(kPatience); });
    INFO(why);
    CHECK(has(why, "cannot start"));
    CHECK(has(why, "signal 9"));
  }
  CHECK(gone(newer_than(before)));
}

TEST_CASE("kill -9 of a process that has not said hello: later another one takes its place") {
  const MuteAtTimes program;
  auto options = actors(2);
  options.actor_program = program.path();
  FaultCluster cluster(options);
  auto job = demo_job(12);
  job.request.method = "exact";
  job.request.num_pipeline_patch = 1;
  job.parallelism = {.pp = 2};
  const auto undisturbed = cluster.run(job);
  const auto result = cluster.struck(job, 4, [&](std::uint64_t) {
    program.mute();
    kill(cluster.pids().at(1), SIGKILL);
    const auto unborn = program.muted();
    CHECK(eventually(kPatience, [&] {
      const auto now = cluster.status().actors.at(1);
      return now.state == ActorState::starting && static_cast<pid_t>(now.pid) == unborn;
    }));
    program.speak();
    kill(unborn, SIGKILL);
  });
  CHECK(result.latents->data == undisturbed.latents->data);
  CHECK(cluster.restarts() == 2);
  REQUIRE(cluster.whole());
}
