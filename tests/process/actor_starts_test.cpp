#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/process/support/processes.h"
#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// Actors that cannot start, or not just now.

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

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

TEST_CASE("a program that is away for a moment costs a second, not the actor") {
  Scratch scratch;
  auto options = actors(1);
  const std::string program = options.actor_program;
  options.actor_program = scratch / "troupe-actor";
  std::filesystem::create_symlink(program, options.actor_program);
  // After two seconds the place is given up: a busy machine may bring the program back too late.
  for (int attempt = 1;; ++attempt) {
    Theatre theatre(options);
    std::filesystem::remove(options.actor_program);
    kill(theatre.pids()[0], SIGKILL);
    const auto failures = [&] { return theatre.status().recent_failures; };
    REQUIRE(eventually(kPatience, [&] { return failures().size() >= 2; }));
    std::filesystem::create_symlink(program, options.actor_program);
    CHECK(has(failures()[1], "cannot be started"));
    const auto job = theatre.client().submit(tiny_job());
    const bool done = job && theatre.client().wait(job.value(), 2 * kPatience);
    if (!done && attempt < 5) continue;
    CHECK(done);
    CHECK(theatre.restarts() == 1);
    break;
  }
}
