// More than one host: agents of `troupe join` as processes of this machine, under other names.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "controller/hosts/capacity.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/joined_host_process.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

Submission job_on(const Parallelism& degrees, int steps = 8, bool elastic = false) {
  auto submission = demo_job(steps);
  submission.request.method = "exact";
  submission.request.num_pipeline_patch = 1;
  submission.parallelism = degrees;
  submission.elastic = elastic;
  return submission;
}

/// A job of which the actor is held at that step.
std::uint64_t held_job(FaultCluster& cluster, const Submission& submission, int step,
                       std::uint32_t actor = 0) {
  cluster.hold(actor, {.step = step});
  const auto job = cluster.submit(submission);
  cluster.held(actor);
  return job;
}

}  // namespace

TEST_CASE("hosts that join are used at once, and the picture does not change with them") {
  FaultCluster cluster(open_to_hosts(1));
  const auto alone = cluster.run(job_on({}));
  JoinedHostProcess alpha(cluster, "alpha", 2), beta(cluster, "beta", 1);
  REQUIRE(alpha.all(ActorState::ready, 2));
  REQUIRE(beta.all(ActorState::ready, 1));
  for (const Parallelism& degrees :
       {Parallelism{.cfg = 2, .pp = 2}, Parallelism{.ulysses = 2, .tp = 2}, Parallelism{.ring = 4},
        Parallelism{.pp = 2}}) {
    CAPTURE(degrees.pp);
    CHECK(range_error(*cluster.run(job_on(degrees)).latents, *alone.latents) < 1e-4);
  }
  // Their own place in the row, with the process that is there.
  for (const auto pid : alpha.pids())
    CHECK(is_alive(pid));
  CHECK(alpha.rows()[1].local_rank == 1);

  // Its end is told with its cause and its last lines, as on the controller's own host.
  kill(alpha.pids().at(1), SIGKILL);
  REQUIRE(eventually(kPatience, [&] { return alpha.rows()[1].restarts == 1; }));
  REQUIRE(alpha.all(ActorState::ready, 2));
  const auto failures = cluster.status().recent_failures;
  CHECK(std::any_of(failures.begin(), failures.end(),
                    [](const auto& text) { return has(text, "was killed by signal 9"); }));

  JoinedHostProcess twin(cluster, "alpha", 1);
  CHECK(twin.command().wait(kPatience) == 1);
  CHECK(has(twin.command().err(), "alpha is in the cluster already"));
}

TEST_CASE("on hosts of unequal size status shows tp and sequence groups inside, stages across") {
  FaultCluster cluster(open_to_hosts(1));
  const auto alone = cluster.run(job_on({}));
  JoinedHostProcess alpha(cluster, "alpha", 3), beta(cluster, "beta", 2);
  REQUIRE(alpha.all(ActorState::ready, 3));
  REQUIRE(beta.all(ActorState::ready, 2));
  const std::string here = cluster.status().host;
  const auto shown = [&](const Parallelism& degrees) {
    CHECK(range_error(*cluster.run(job_on(degrees)).latents, *alone.latents) < 1e-4);
    Scratch folder;
    Command status({"status", "--json", "--connect", cluster.cluster().endpoint()},
                   folder.path.string());
    REQUIRE(status.wait(kPatience) == 0);
    std::vector<std::string> host_of(degrees.world());
    const auto told = nlohmann::json::parse(status.out());
    for (const auto& actor : told["actors"]) {
      std::size_t world = actor["groups"].empty() ? 0 : 1;
      for (const auto& group : actor["groups"])
        world *= group["ranks"].size();
      if (world != host_of.size()) continue;  // of another mesh, earlier
      const auto& own = actor["groups"][0];
      host_of.at(own["ranks"][own["rank"].get<std::size_t>()].get<std::size_t>()) =
          actor["host"].get<std::string>();
    }
    std::string text;
    for (const auto& host : host_of)
      text += (text.empty() ? "" : " ") + host;
    return text;
  };
  // Two pairs on 1, 3 and 2 places: one of alpha's stays idle rather than that a pair is torn.
  CHECK(shown({.pp = 2, .tp = 2}) == "alpha alpha beta beta");
  CHECK(shown({.cfg = 2, .ulysses = 3}) == "alpha alpha alpha beta beta " + here);
  CHECK(shown({.pp = 3}) == "alpha alpha alpha");
  CHECK(shown({.ring = 5}) == "alpha alpha alpha beta beta");
  CHECK(shown({.ulysses = 2}) == "beta beta");
}

TEST_CASE("a cluster begins without actors of its own and takes those of hosts that join") {
  FaultCluster cluster(open_to_hosts(0));
  for (const bool automatic : {false, true}) {
    const auto refused = cluster.client().submit(job_on({.automatic = automatic}));
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::overloaded);
    CHECK(has(refused.error().what, "the cluster has no actors yet"));
  }
  JoinedHostProcess alpha(cluster, "alpha", 2);
  REQUIRE(alpha.all(ActorState::ready, 2));
  CHECK(cluster.run(job_on({.cfg = 2})).pictures.size() == 1);
}

TEST_CASE("a cluster that stops when all its actors have left takes its hosts along") {
  for (int round = 0; round < 3; ++round) {
    FaultCluster cluster(open_to_hosts(1));
    JoinedHostProcess beta(cluster, "beta", 1);
    REQUIRE(beta.all(ActorState::ready, 1));
    take(cluster.client().drain({"beta", "0"}, /*now=*/false), "drain");
    REQUIRE(eventually(kPatience, [&] {
      const auto actors = cluster.status().actors;
      return std::all_of(actors.begin(), actors.end(),
                         [](const auto& actor) { return actor.state == ActorState::drained; });
    }));
    cluster.cluster().stop();
    CHECK(beta.command().wait(kPatience) == 0);
    CHECK_FALSE(has(beta.command().err(), "is lost"));
  }
}

TEST_CASE("a host that dies takes its actors along, and jobs go on without it") {
  FaultCluster cluster(open_to_hosts(2));
  JoinedHostProcess beta(cluster, "beta", 2);
  REQUIRE(beta.all(ActorState::ready, 2));
  const auto undisturbed = cluster.run(job_on({.cfg = 2, .pp = 2}));
  const auto id = held_job(cluster, job_on({.cfg = 2, .pp = 2}, 40, /*elastic=*/true), 8);
  const auto pids = beta.pids();
  beta.command().signal(SIGKILL);
  CHECK(gone(pids));
  const auto result = take(cluster.client().wait(id, 600s), "wait");
  const auto report = nlohmann::json::parse(result.report);
  REQUIRE(report["parts"].size() == 2);
  CHECK(has(report["recoveries"][0]["cause"], "beta"));
  MESSAGE("went on at step " << report["recoveries"][0]["step"] << " after "
                             << report["recoveries"][0]["seconds"] << " s");
  CHECK(beta.all(ActorState::dead, 2));
  CHECK(range_error(*result.latents, *cluster.run(job_on({.pp = 2}, 40)).latents) < 1e-4);

  // Back again, in the same places.
  JoinedHostProcess again(cluster, "beta", 2);
  REQUIRE(again.all(ActorState::ready, 2));
  CHECK(cluster.status().actors.size() == 4);
  CHECK(range_error(*cluster.run(job_on({.cfg = 2, .pp = 2})).latents, *undisturbed.latents) == 0);
}

TEST_CASE("why an actor of another host is killed stands in its log there") {
  const Scratch scratch;
  FaultCluster cluster(open_to_hosts(1));
  JoinedHostProcess beta(cluster, "beta", 1, {"--keep-logs", scratch.path.string()});
  REQUIRE(beta.all(ActorState::ready, 1));
  const auto stopped = beta.rows().at(0);
  kill(static_cast<pid_t>(stopped.pid), SIGSTOP);
  REQUIRE(eventually(kPatience, [&] { return beta.rows().at(0).restarts == 1; }));
  std::string log;
  const std::string end = "\n-- the process ended: killed by signal 9 (SIGKILL)\n";
  CHECK(eventually(kPatience, [&] {
    log = read_all(scratch / ("actor-" + std::to_string(stopped.id) + ".log"));
    return has(log, end);
  }));
  INFO(log);
  CHECK(has(log, "-- process " + std::to_string(stopped.pid) + " began"));
  const auto killed = log.find("-- killed by the controller: lost: no sign of life");
  REQUIRE(killed != std::string::npos);
  CHECK(has(log.substr(killed), end));
}

TEST_CASE("draining empties a host without losing a job") {
  FaultCluster cluster(open_to_hosts(2));
  JoinedHostProcess beta(cluster, "beta", 2);
  REQUIRE(beta.all(ActorState::ready, 2));
  CHECK(!cluster.client().drain({"gamma"}));

  // A job that has nowhere to go ends there first; new ones go elsewhere.
  const auto staying = held_job(cluster, job_on({.cfg = 2, .pp = 2}, 40), 2);
  CHECK(has(take(cluster.client().drain({"beta"}, /*now=*/true), "drain"), "end there first"));
  CHECK(beta.rows()[0].state == ActorState::draining);
  cluster.release(0);
  CHECK(take(cluster.client().wait(staying, 600s), "wait").pictures.size() == 1);
  CHECK(beta.all(ActorState::drained, 2));
  CHECK(!cluster.client().submit(job_on({.cfg = 2, .pp = 2})));
  cluster.run(job_on({.pp = 2}));
  CHECK(beta.command().wait(0ms) == -1);  // the agent stays, with nothing to do, and says so
  CHECK(eventually(kPatience, [&] {
    return has(beta.command().err(), "this host is drained: its actors have left");
  }));
  beta.command().signal(SIGTERM);
  CHECK(beta.command().wait(kPatience) == 0);
  // Who leaves in order has not failed.
  CHECK(cluster.status().recent_failures.empty());

  // Where there are idle actors, a job moves at once.
  JoinedHostProcess gamma(cluster, "gamma", 2);
  REQUIRE(gamma.all(ActorState::ready, 2));
  const auto undisturbed = cluster.run(job_on({.pp = 2}, 40));
  const std::uint32_t actor = nlohmann::json::parse(undisturbed.report)["actors"][0]["actor"];
  const auto moving = held_job(cluster, job_on({.pp = 2}, 40), 3, actor);
  const auto host = cluster.held(actor).host;
  CHECK(has(take(cluster.client().drain({host}, true), "drain"), "go on elsewhere"));
  const auto result = take(cluster.client().wait(moving, 600s), "wait");
  CHECK(result.latents->data == undisturbed.latents->data);
  CHECK(nlohmann::json::parse(result.report)["recoveries"].size() == 1);
}

TEST_CASE("a cluster starts without the actors that were drained meanwhile") {
  const Scratch scratch;
  // More than may start at a time: the last one has no process yet.
  const int at_once = cluster::starting_at_once(cluster::local_capacity().cores);
  auto options = actors(at_once + 1);
  const std::string program = options.actor_program;
  options.actor_program = scratch / "actor-behind-a-gate";
  const std::string gate = scratch / "open";
  std::ofstream(options.actor_program) << "#!/bin/sh\nwhile [ ! -e " << gate
                                       << " ]; do sleep 0.1; done\nexec " << program << " \"$@\"\n";
  std::filesystem::permissions(options.actor_program, std::filesystem::perms::owner_all);
  cluster::Cluster cluster(options);
  auto client = Client::connect(cluster.endpoint(), kPatience);
  REQUIRE(client);
  std::vector<std::string> others;
  for (int id = 1; id <= at_once; ++id)
    others.push_back(std::to_string(id));
  SUBCASE("one is left") {
    REQUIRE(client.value().drain({others.back()}));
    REQUIRE(client.value().drain(others));
    std::ofstream{gate};
    cluster.wait_ready(kPatience);
    const auto job = client.value().submit(tiny_job());
    REQUIRE(job);
    CHECK(client.value().wait(job.value(), 600s));
  }
  SUBCASE("none is left") {
    others.push_back("0");
    REQUIRE(client.value().drain(others));
    CHECK_THROWS_WITH_AS(cluster.wait_ready(kPatience), doctest::Contains("were drained before"),
                         std::runtime_error);
  }
}

TEST_CASE("Ctrl-C at join drains, with a deadline") {
  FaultCluster cluster(open_to_hosts(1));
  JoinedHostProcess alpha(cluster, "alpha", 1);
  REQUIRE(alpha.all(ActorState::ready, 1));
  const auto moving = held_job(cluster, job_on({.pp = 2}, 24, /*elastic=*/true), 3);
  alpha.command().signal(SIGINT);
  cluster.release(0);
  CHECK(alpha.command().wait(kPatience) == 0);
  CHECK(take(cluster.client().wait(moving, 600s), "wait").pictures.size() == 1);

  JoinedHostProcess beta(cluster, "beta", 1, {"--drain-deadline", "1"});
  REQUIRE(beta.all(ActorState::ready, 1));
  const auto staying = held_job(cluster, job_on({.pp = 2}), 2);
  const auto pids = beta.pids();
  beta.command().signal(SIGINT);
  CHECK(beta.command().wait(kPatience) == 1);
  CHECK(has(beta.command().err(), "still had work after 1 s"));
  CHECK(gone(pids));
  const auto fall = cluster.client().wait(staying, kPatience);
  REQUIRE(!fall);
  CHECK(has(fall.error().what, "beta"));
}
