#include <fcntl.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/doctest.h"
#include "tests/support/flood.h"
#include "tests/support/patience.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "tests/user_actors/classes.h"
#include "tests/user_actors/small_cluster.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

UserActorInfo info(Actors actors, std::uint64_t id) {
  for (auto& each : take(actors.list())) {
    if (each.id == id) return each;
  }
  throw std::runtime_error("there is no actor " + std::to_string(id));
}

}  // namespace

TEST_CASE("a killed actor's calls fail with the cause, and monitors hear of it") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  const Scratch scratch;
  auto early = take(actors.spawn<Probe>({.name = "early"}, "p"));
  auto staying = early.call<&Probe::stay>(scratch / "there");
  REQUIRE(eventually(kPatience, [&] { return std::filesystem::exists(scratch / "there"); }));
  kill(static_cast<pid_t>(info(actors, early.id()).pid), SIGKILL);
  const auto result = staying.wait(kPatience);
  REQUIRE(!result.ok());
  CHECK(result.error().code == ErrorCode::died);
  CHECK(result.error().what ==
        "troupe::testing::Probe \"early\" (actor " + std::to_string(early.id()) +
            ") has ended: killed by signal 9 (SIGKILL) in stay (during stay)");

  auto probe = take(actors.spawn<Probe>({.name = "victim"}, "p"));
  std::promise<Death> death;
  take(probe.monitor([&](const Death& how) { death.set_value(how); }));
  CHECK(take(probe.call<&Probe::name>().wait(kPatience)) == "p");
  auto sleeping = probe.call<&Probe::sleep>(600'000);
  auto behind = probe.call<&Probe::append>(1);
  kill(static_cast<pid_t>(info(actors, probe.id()).pid), SIGKILL);
  CHECK(sleeping.wait(kPatience).error().code == ErrorCode::died);
  CHECK(behind.wait(kPatience).error().code == ErrorCode::died);
  auto future = death.get_future();
  REQUIRE(future.wait_for(kPatience) == std::future_status::ready);
  const auto how = future.get();
  CHECK(how.signal == 9);
  CHECK(!how.restarting);
  CHECK(probe.call<&Probe::name>().wait(kPatience).error().code == ErrorCode::died);
  CHECK(actors.get<Probe>("victim").error().code == ErrorCode::not_found);
}

TEST_CASE("the cause has signal, exit code, method and last log lines") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto crashing = take(actors.spawn<Probe>({}, "p"));
  const auto crash = crashing.call<&Probe::crash>(SIGSEGV).wait(kPatience);
  CHECK(crash.error().what.find("killed by signal 11 (SIGSEGV)") != std::string::npos);
  CHECK(crash.error().what.find("in crash: about to crash") != std::string::npos);
  auto leaving = take(actors.spawn<Probe>({}, "p"));
  CHECK(leaving.call<&Probe::leave>(3).wait(kPatience).error().what.find("exit code 3 in leave") !=
        std::string::npos);
}

TEST_CASE("max_restarts: the constructor runs again, calls under way fail as restarting") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto probe = take(actors.spawn<Probe>({.max_restarts = 2}, "p"));
  take(probe.call<&Probe::append>(1).wait(kPatience));
  for (std::uint64_t life = 1; life <= 2; ++life) {
    auto last = probe.call<&Probe::crash>(SIGKILL);
    CHECK(last.wait(kPatience).error().code == ErrorCode::restarting);
    CHECK(take(probe.call<&Probe::restarts>().wait(kPatience)) == life);
    CHECK(take(probe.call<&Probe::seen>().wait(kPatience)).empty());
  }
  CHECK(probe.call<&Probe::crash>(SIGKILL).wait(kPatience).error().code == ErrorCode::died);
  CHECK(info(actors, probe.id()).restarts == 2);
  CHECK(info(actors, probe.id()).state == UserActorState::dead);
}

TEST_CASE("a call that was sent is never sent again") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto counter = take(actors.spawn<Counter>({}, 0));
  auto probe = take(actors.spawn<Probe>({.max_restarts = 5}, "p"));
  // The call makes its mark elsewhere and then dies: were it repeated, the mark would be there
  // twice.
  for (int i = 0; i < 3; ++i) {
    take(probe.call<&Probe::call_other>(counter, 1).wait(kPatience));
    CHECK(probe.call<&Probe::leave>(1).wait(kPatience).error().code == ErrorCode::restarting);
  }
  CHECK(take(counter.call<&Counter::value>().wait(kPatience)) == 3);
}

TEST_CASE("kill: for good, or with a restart") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto probe = take(actors.spawn<Probe>({.name = "n", .max_restarts = -1}, "p"));
  take(probe.kill(true));
  CHECK(take(probe.call<&Probe::restarts>().wait(kPatience)) == 1);
  take(probe.kill());
  CHECK(probe.call<&Probe::name>().wait(kPatience).error().what.find("killed on request") !=
        std::string::npos);
  take(probe.kill());  // again is no error
  CHECK(actors.kill(99).error().code == ErrorCode::not_found);
  CHECK(take(actors.spawn<Probe>({.name = "n"}, "other")).id() != probe.id());
}

TEST_CASE("names: get, get_or_create, taken, of another class") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto other = cluster.connect();
  auto counter = take(client.actors().spawn<Counter>({.name = "hits"}, 7));
  CHECK(take(take(other.actors().get<Counter>("hits")).call<&Counter::value>().wait(kPatience)) ==
        7);
  CHECK(take(other.actors().get_or_create<Counter>({.name = "hits"}, 0)).id() == counter.id());
  const auto taken = other.actors().spawn<Counter>({.name = "hits"}, 0);
  CHECK(taken.error().code == ErrorCode::refused);
  CHECK(taken.error().what.find("\"hits\" is taken by troupe::testing::Counter") !=
        std::string::npos);
  CHECK(other.actors().get<Probe>("hits").error().code == ErrorCode::bad_request);
  CHECK(other.actors().get<Counter>("nobody").error().code == ErrorCode::not_found);
  std::vector<Result<ActorHandle<Counter>>> made(2, Error{});
  std::thread one([&] { made[0] = client.actors().get_or_create<Counter>({.name = "once"}, 1); });
  std::thread two([&] { made[1] = other.actors().get_or_create<Counter>({.name = "once"}, 2); });
  one.join();
  two.join();
  CHECK(take(made[0]).id() == take(made[1]).id());
}

TEST_CASE("actors end with their owner unless they are detached") {
  SmallCluster cluster;
  auto watcher = cluster.connect();
  auto actors = watcher.actors();
  std::uint64_t owned = 0, kept = 0, grandchild = 0;
  {
    auto client = cluster.connect();
    auto parent = take(client.actors().spawn<Probe>({}, "p"));
    owned = parent.id();
    grandchild = take(parent.call<&Probe::spawn_counter>(1, false).wait(kPatience)).id();
    kept = take(client.actors().spawn<Counter>({.detached = true}, 3)).id();
    CHECK(info(actors, owned).owner == "client");
    CHECK(info(actors, grandchild).owner == "actor " + std::to_string(owned));
  }
  CHECK(eventually(kPatience,
                   [&] { return info(actors, grandchild).state == UserActorState::dead; }));
  CHECK(info(actors, owned).cause == "its client is gone");
  CHECK(info(actors, kept).state == UserActorState::running);
  CHECK(take(actors.handle<Counter>(kept).call<&Counter::value>().wait(kPatience)) == 3);
  CHECK(eventually(kPatience, [&] { return cluster.processes() == 1; }));
}

TEST_CASE("a constructor's exception is the spawn's error, and nothing is left") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  const auto failed = actors.spawn<Fussy>({.name = "f", .max_restarts = 5}, false);
  CHECK(failed.error().code == ErrorCode::exception);
  CHECK(failed.error().what.find("this will not do") != std::string::npos);
  CHECK(take(take(actors.spawn<Fussy>({.name = "f"}, true)).call<&Fussy::one>().wait(kPatience)) ==
        1);
  CHECK(actors.spawn<Stranger>({}).error().what.find("no plugin of this cluster has a class") !=
        std::string::npos);
}

TEST_CASE("resources are reserved and returned") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto big = take(actors.spawn<Counter>({.resources = {.gpus = 2, .cores = 3}}, 0));
  CHECK(info(actors, big.id()).gpus == std::vector<int>{0, 1});
  const auto full = actors.spawn<Counter>({.resources = {.cores = 2}}, 0);
  CHECK(full.error().code == ErrorCode::overloaded);
  CHECK(full.error().what.find("here has 1 of 4 cores and 0 of 2 GPUs free") != std::string::npos);
  take(big.kill());
  take(actors.spawn<Counter>({.resources = {.gpus = 1, .cores = 4}}, 0));
  CHECK(actors.spawn<Counter>({.placement = "sideways"}, 0).error().code == ErrorCode::bad_request);
}

TEST_CASE("plugins that cannot be used are refused in one line") {
  const auto refusal = [](const std::string& plugin) {
    return SmallCluster({.plugins = {plugin}}).refusal();
  };
  CHECK(refusal("/nowhere/lib.so") ==
        "[plugin] /nowhere/lib.so: there is no such file on this host");
  const std::string folder = "/tmp/troupe-plugin-test-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/text.so") << "not a library";
  CHECK(refusal(folder + "/text.so").find("cannot be loaded") != std::string::npos);
  std::filesystem::remove_all(folder);
  const auto twice = SmallCluster({.plugins = {TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so",
                                               TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so"}});
  CHECK(twice.refusal().find("the class troupe::testing::Counter is in") != std::string::npos);
}

TEST_CASE("over tcp as over ipc") {
  SmallCluster cluster({.listen = "tcp://127.0.0.1:0"});
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  auto made = probe.call<&Probe::array>(100'000, 2.f);
  CHECK(take(probe.call<&Probe::sum>(made).wait(kPatience)) == 200'000);
}

TEST_CASE("when the controller is gone, calls fail and actors end") {
  auto cluster = std::make_unique<SmallCluster>();
  auto client = cluster->connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  auto sleeping = probe.call<&Probe::sleep>(600'000);
  const auto pid = static_cast<pid_t>(info(client.actors(), probe.id()).pid);
  cluster.reset();
  CHECK(sleeping.wait(kPatience).error().code != ErrorCode::timeout);
  CHECK(eventually(kPatience, [&] { return kill(pid, 0) != 0; }));
}

TEST_CASE(
    "hang_after: a method that does not get on is ended, by name; waiting for calls is none") {
  const Scratch scratch;
  SmallCluster cluster({.log_folder = scratch.path.string()});
  auto client = cluster.connect();
  auto actors = client.actors();
  // It dies twice, the second time perhaps after this case.
  const auto death = std::make_shared<std::promise<Death>>();
  // Longer than a busy machine keeps from running what gets on.
  constexpr auto kHangAfter = 4s;
  auto probe = take(actors.spawn<Probe>({.max_restarts = 1, .hang_after = kHangAfter}, "p"));
  std::this_thread::sleep_for(1.5 * kHangAfter);  // nothing to do
  constexpr std::int64_t kLong = 6000;            // and says so
  CHECK(take(probe.call<&Probe::labour>(kLong).wait(2 * kPatience)) == kLong);
  CHECK(take(probe.call<&Probe::restarts>().wait(kPatience)) == 0);
  take(probe.monitor([death, first = true](const Death& how) mutable {
    if (std::exchange(first, false)) death->set_value(how);
  }));

  const auto before = std::chrono::steady_clock::now();
  const auto hung = probe.call<&Probe::sleep>(600'000).wait(kPatience);
  const std::chrono::duration<double> noticed = std::chrono::steady_clock::now() - before;
  MESSAGE("noticed after " << noticed.count() << " s");
  CHECK(noticed >= kHangAfter);
  REQUIRE(!hung.ok());
  CHECK(hung.error().code == ErrorCode::restarting);
  CHECK(hung.error().what.find("is restarting: hung in sleep for ") != std::string::npos);
  auto future = death->get_future();
  REQUIRE(future.wait_for(kPatience) == std::future_status::ready);
  const auto how = future.get();
  CHECK(how.method == "sleep");
  CHECK(how.restarting);
  CHECK(take(probe.call<&Probe::restarts>().wait(kPatience)) == 1);
  CHECK(info(actors, probe.id()).cause.starts_with("hung in sleep for "));
  const auto log = read_all(scratch / ("user-actor-" + std::to_string(probe.id()) + ".log"));
  INFO(log);
  CHECK(has(log, "-- killed by the controller: hung for "));
  CHECK(has(log, " s, in sleep\n"));

  CHECK(probe.call<&Probe::sleep>(600'000).wait(kPatience).error().code == ErrorCode::died);
  CHECK(actors.spawn<Probe>({.hang_after = -1ms}, "p").error().code == ErrorCode::bad_request);
}

TEST_CASE("an actor's process has no descriptor that is not meant for it, nor gives it on") {
  const int careless = open("/dev/zero", O_RDONLY);
  SmallCluster cluster;
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  CHECK(take(probe.call<&Probe::open_to_children>().wait(kPatience)) == std::vector<std::string>{});
  const auto pid = std::to_string(info(client.actors(), probe.id()).pid);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + pid + "/fd")) {
    std::error_code gone;
    CHECK(std::filesystem::read_symlink(entry, gone) != "/dev/zero");
  }
  close(careless);
}

TEST_CASE(
    "251 actors of one client where there are few descriptors: the rest are refused, and why") {
  const FewDescriptors few(256);
  SmallCluster cluster;
  auto client = cluster.connect();
  std::vector<ActorHandle<Counter>> living;
  std::set<std::string> causes;
  for (int i = 0; i < 251; ++i) {
    auto spawned = client.actors().spawn<Counter>({}, 0);
    if (spawned)
      living.push_back(spawned.value());
    else
      causes.insert(spawned.error().what.substr(spawned.error().what.find("no descriptors")));
  }
  CHECK(living.size() >= 10);
  CHECK(living.size() < 60);
  REQUIRE_FALSE(causes.empty());
  CHECK(
      causes.begin()->starts_with("no descriptors to spare: of the 256 descriptors that this "
                                  "process may have (ulimit -n) 64 are kept in reserve"));
  CHECK(take(living.back().call<&Counter::add>(3).wait(kPatience)) == 3);
  // Another client is let in, and gets an answer.
  CHECK(take(cluster.connect().actors().list()).size() >= living.size());
}

TEST_CASE("without hang_after a method may take its time") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  CHECK(probe.call<&Probe::sleep>(1500).wait(kPatience).ok());
}

}  // namespace troupe::testing
