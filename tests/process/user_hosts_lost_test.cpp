// What becomes of users' actors when their host stands still, dies or is drained.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <thread>
#include <vector>

#include "tests/process/support/plugin_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "tests/user_actors/classes.h"
#include "troupe/actor.h"

namespace troupe::testing {

using namespace std::chrono_literals;

TEST_CASE("an agent that stands still: its actors are not the cluster's any more, and end") {
  PluginCluster cluster;
  auto& beta = cluster.join("beta");
  auto moved = cluster.probe_on("beta", {.max_restarts = 1});
  const auto old = static_cast<pid_t>(cluster.info(moved.id()).pid);
  CHECK(value_of(moved.call<&Probe::restarts>().wait(kPatience)) == 0);
  const Scratch marks;
  auto under_way = moved.call<&Probe::stay>(marks / "there");
  REQUIRE(eventually(kPatience, [&] { return std::filesystem::exists(marks / "there"); }));
  beta.signal(SIGSTOP);
  const auto fall = under_way.wait(kPatience);
  CHECK(fall.error().code == ErrorCode::restarting);
  CHECK(has(fall.error().what, "lost with its host beta: no sign of life for "));
  CHECK(value_of(moved.call<&Probe::restarts>().wait(kPatience)) == 1);
  CHECK(cluster.host_of(moved) == cluster.here());
  // The agent cannot end it; the controller tells it to go.
  CHECK(gone({old}));
  beta.signal(SIGCONT);
  // The host joins again, and says so again.
  CHECK(eventually(kPatience, [&] {
    const auto said = beta.out();
    const std::string joined = "joined    ";
    return said.find(joined) != said.rfind(joined);
  }));
}

TEST_CASE("a host that dies takes its users' actors along; they begin anew elsewhere if they may") {
  PluginCluster cluster;
  auto& beta = cluster.join("beta");
  cluster.join("gamma");
  auto users = cluster.users();
  auto mortal = cluster.probe_on("beta", {.name = "mortal"});
  auto lasting = cluster.probe_on("beta", {.name = "lasting", .max_restarts = 1});
  // A group that is together there, since there was no room on the others.
  const double cores = std::thread::hardware_concurrency();
  std::vector<std::uint64_t> fillers;
  for (int i = 0; i < 2; ++i)
    fillers.push_back(
        cluster.probe_on(i ? "gamma" : cluster.here(), {.resources = {.cores = cores}}).id());
  std::vector<ActorHandle<Counter>> group;
  for (int i = 0; i < 3; ++i) {
    group.push_back(value_of(users.spawn<Counter>(
        {.resources = {.cores = 0.1}, .placement = "together", .group = "g", .max_restarts = 1},
        i)));
    CHECK(cluster.host_of(group.back()) == "beta");
  }
  for (const auto id : fillers)
    value_of(users.kill(id));
  auto elsewhere = cluster.probe_on(cluster.here());
  const auto pid = static_cast<pid_t>(cluster.info(mortal.id()).pid);
  std::promise<Death> mortal_death, lasting_death;
  value_of(mortal.monitor([&](const Death& how) { mortal_death.set_value(how); }));
  value_of(lasting.monitor([&](const Death& how) { lasting_death.set_value(how); }));
  // What comes next is sent at once, for the links are there.
  for (auto* each : {&mortal, &lasting})
    CHECK(value_of(each->call<&Probe::name>().wait(kPatience)) == "p");
  const Scratch marks;
  auto under_way = mortal.call<&Probe::stay>(marks / "mortal");
  auto restarting = lasting.call<&Probe::stay>(marks / "lasting");
  CHECK(value_of(elsewhere.call<&Probe::name>().wait(kPatience)) == "p");
  REQUIRE(eventually(kPatience, [&] {
    return std::filesystem::exists(marks / "mortal") && std::filesystem::exists(marks / "lasting");
  }));

  const auto blow = std::chrono::steady_clock::now();
  beta.signal(SIGKILL);
  const auto fall = under_way.wait(kPatience);
  const std::chrono::duration<double> noticed = std::chrono::steady_clock::now() - blow;
  MESSAGE("noticed after " << noticed.count() << " s: " << fall.error().what);
  CHECK(noticed.count() < kAtOnce);
  CHECK(fall.error().code == ErrorCode::died);
  CHECK(has(fall.error().what, "lost with its host beta: "));
  CHECK(restarting.wait(kPatience).error().code == ErrorCode::restarting);
  auto told = mortal_death.get_future();
  REQUIRE(told.wait_for(kPatience) == std::future_status::ready);
  CHECK(told.get().cause.starts_with("lost with its host beta: "));
  auto told_lasting = lasting_death.get_future();
  REQUIRE(told_lasting.wait_for(kPatience) == std::future_status::ready);
  CHECK(told_lasting.get().restarting);
  // A new process on the host that is left, its constructor run again.
  CHECK(value_of(lasting.call<&Probe::restarts>().wait(kPatience)) == 1);
  CHECK(cluster.host_of(lasting) != "beta");
  CHECK(value_of(users.get<Probe>("lasting")).id() == lasting.id());
  CHECK(gone({pid}));
  CHECK(value_of(elsewhere.call<&Probe::restarts>().wait(kPatience)) == 0);
  for (auto& member : group) {
    CHECK(member.call<&Counter::add>(0).wait(kPatience).ok());
    CHECK(cluster.info(member.id()).restarts == 1);
    CHECK(cluster.host_of(member) != "beta");
    CHECK(cluster.host_of(member) == cluster.host_of(group[0]));
  }

  // The host comes back and is used again.
  cluster.join("beta");
  CHECK(value_of(cluster.probe_on("beta").call<&Probe::restarts>().wait(kPatience)) == 0);
}

TEST_CASE("drain: no new users' actors; with --now they end, or begin anew elsewhere") {
  PluginCluster cluster;
  cluster.join("beta");
  auto users = cluster.users();
  auto staying = cluster.probe_on("beta", {.name = "staying"});
  auto moving = cluster.probe_on("beta", {.name = "moving", .max_restarts = -1});
  const auto note = value_of(cluster.client().drain({"beta"}));
  CHECK(has(note, "users' actors on beta stay until the end: "));
  CHECK(has(note, "\"staying\""));
  for (int i = 0; i < 3; ++i) {
    const auto probe = value_of(users.spawn<Counter>({.placement = "spread", .group = "after"}, 0));
    CHECK(cluster.host_of(probe) == cluster.here());
  }
  CHECK(value_of(staying.call<&Probe::restarts>().wait(kPatience)) == 0);

  const auto now = value_of(cluster.client().drain({"beta"}, true));
  CHECK(has(now, "users' actors on beta are ended: "));
  REQUIRE(eventually(kPatience,
                     [&] { return cluster.info(staying.id()).state == UserActorState::dead; }));
  CHECK(cluster.info(staying.id()).cause == "its host beta is drained");
  REQUIRE(eventually(kPatience, [&] { return cluster.info(moving.id()).restarts == 1; }));
  CHECK(value_of(moving.call<&Probe::restarts>().wait(kPatience)) == 1);
  CHECK(cluster.host_of(moving) == cluster.here());

  // Ctrl-C at join is the same, and waits for them to be gone.
  auto& gamma = cluster.join("gamma");
  auto there = cluster.probe_on("gamma", {.max_restarts = 1});
  const auto pid = static_cast<pid_t>(cluster.info(there.id()).pid);
  gamma.signal(SIGINT);
  CHECK(gamma.wait(kPatience) == 0);
  CHECK(!is_alive(pid));
  CHECK(value_of(there.call<&Probe::restarts>().wait(kPatience)) == 1);

  // With nowhere to go the end is the end, and says why.
  auto last = value_of(users.spawn<Probe>({.max_restarts = -1}, "p"));
  value_of(cluster.client().drain({cluster.here()}, true));
  REQUIRE(
      eventually(kPatience, [&] { return cluster.info(last.id()).state == UserActorState::dead; }));
  CHECK(has(cluster.info(last.id()).cause, "it cannot begin anew"));
  CHECK(has(cluster.info(last.id()).cause, cluster.here() + " is being drained"));
}

}  // namespace troupe::testing
