// Users' actors on two hosts with a network and keys between them, and a link that can be cut.
#include <filesystem>
#include <set>
#include <vector>

#include "tests/process/support/connect.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/two_hosts.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "tests/user_actors/classes.h"
#include "transport/control/key_folder.h"
#include "troupe/actor.h"

namespace troupe::testing {

using namespace std::chrono_literals;

TEST_CASE("users' actors on two hosts: tensors over the network, and a link that goes silent" *
          doctest::skip(!TwoHosts::possible())) {
  Scratch scratch;
  TwoHosts net;
  const std::string keys = scratch / "keys";
  const std::string endpoint = "tcp://10.77.0.1:7400";
  control::KeyFolder(keys).make(false);
  const std::string program = std::string("env XDG_RUNTIME_DIR=") + scratch.path.string() + " " +
                              TROUPE_BINARY_DIR "/bin/troupe ";
  Background controller(net.on_a(program + "start --actors 1 --listen " + endpoint + " --keys " +
                                 keys +
                                 " --plugin " TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so >" +
                                 (scratch / "start.out") + " 2>&1"));
  Background guest(net.on_b(program + "join --actors 1 --name b --connect " + endpoint +
                            " --keys " + keys +
                            " --plugin " TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so >" +
                            (scratch / "join.out") + " 2>&1"));
  REQUIRE(eventually(kPatience, [&] { return has(read_all(scratch / "join.out"), "joined"); }));

  net.be_on_a([&] {
    auto client = take(Client::connect(endpoint, kPatience, keys), "connect");
    auto users = client.actors();
    const auto info = [&](std::uint64_t id) {
      for (auto& each : take(users.list(), "list"))
        if (each.id == id) return each;
      return UserActorInfo{};
    };
    // One here, one there, as soon as the plugin has been looked at on both.
    std::vector<ActorHandle<Probe>> ring;
    REQUIRE(eventually(kPatience, [&] {
      for (const auto& old : ring)
        take(users.kill(old.id()), "kill");
      ring.clear();
      std::set<std::string> hosts;
      for (int i = 0; i < 2; ++i) {
        ring.push_back(take(
            users.spawn<Probe>({.placement = "spread", .group = "ring", .max_restarts = 1}, "r"),
            "spawn"));
        hosts.insert(info(ring.back().id()).host);
      }
      return hosts.size() == 2;
    }));
    auto tensor = ring[0].call<&Probe::array>(1'000'000, 1.f);  // 4 MB
    for (int lap = 0; lap < 2; ++lap) {
      for (auto& member : ring)
        tensor = member.call<&Probe::twice>(tensor);
    }
    CHECK(take(ring[0].call<&Probe::sum>(tensor).wait(kPatience), "sum") == 16e6);
    CHECK(take(ring[1].call<&Probe::sum>(tensor).wait(kPatience), "sum") == 16e6);

    auto& far = info(ring[0].id()).host == "b" ? ring[0] : ring[1];
    auto& near = &far == &ring[0] ? ring[1] : ring[0];
    const auto first = info(far.id()).pid;
    const Scratch marks;
    auto under_way = far.call<&Probe::stay>(marks / "there");
    REQUIRE(eventually(kPatience, [&] { return std::filesystem::exists(marks / "there"); }));
    const auto blow = std::chrono::steady_clock::now();
    net.cut();
    const auto fall = under_way.wait(2 * kPatience);
    const std::chrono::duration<double> noticed = std::chrono::steady_clock::now() - blow;
    REQUIRE(!fall);
    MESSAGE("noticed after " << noticed.count() << " s: " << fall.error().what);
    CHECK(noticed.count() < 60);
    CHECK(fall.error().code == ErrorCode::restarting);
    CHECK(has(fall.error().what, "lost with its host b: "));
    CHECK(take(far.call<&Probe::restarts>().wait(kPatience), "restarts") == 1);
    CHECK(info(far.id()).host != "b");
    CHECK(take(near.call<&Probe::restarts>().wait(kPatience), "restarts") == 0);
    // What is on the far side ends by itself: the agent ends it when the controller is silent.
    CHECK(gone({static_cast<pid_t>(first)}));

    net.mend();
    REQUIRE(eventually(kPatience, [&] {
      const auto probe = users.spawn<Probe>({.placement = "spread", .group = "after"}, "again");
      return probe && info(probe.value().id()).host == "b";
    }));
    take(client.stop_cluster(), "stop");
  });
  CHECK(guest.wait(kPatience) == 0);
}

}  // namespace troupe::testing
