// Which addresses the processes of a cluster listen on, and what it says of those it turned away.
#include "tests/process/support/listening_sockets.h"

#include <nlohmann/json.hpp>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/joined_host_process.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "tests/user_actors/classes.h"
#include "troupe/actor.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("actors and users' actors listen on the one address that their host was given") {
  auto options = open_to_hosts(1);
  options.tensor_host = "127.0.0.2";
  options.plugins = {TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so"};
  FaultCluster cluster(options);
  JoinedHostProcess beta(cluster, "beta", 1, {"--tensor-host", "127.0.0.3"});
  REQUIRE(beta.all(ActorState::ready, 1));
  // The tensor plane's doors are made by then.
  auto job = tiny_job(1);
  job.parallelism = {.dp = 1, .cfg = 2};
  cluster.run(job);
  auto users = cluster.client().actors();
  std::vector<ActorHandle<Probe>> probes;
  for (int i = 0; i < 2; ++i)
    probes.push_back(
        take(users.spawn<Probe>({.placement = "spread", .group = "doors"}, "p"), "spawn"));

  std::vector<std::pair<pid_t, std::string>> expected;
  for (const auto& actor : cluster.status().actors)
    expected.emplace_back(actor.pid, actor.host == "beta" ? "127.0.0.3" : "127.0.0.2");
  for (const auto& actor : take(users.list(), "list"))
    expected.emplace_back(actor.pid, actor.host == "beta" ? "127.0.0.3" : "127.0.0.2");
  REQUIRE(expected.size() == 4);
  for (const auto& [pid, address] : expected) {
    CAPTURE(pid);
    const auto doors = listening_sockets_of(pid);
    CHECK_FALSE(doors.tcp.empty());
    for (const auto& door : doors.tcp)
      CHECK(door.address == address);
  }
  // The controller itself: control plane and blobs.
  for (const auto& door : listening_sockets_of(getpid()).tcp)
    CHECK(door.address == "127.0.0.1");
}

TEST_CASE("who is turned away stands in the controller's log once, and is counted") {
  const Scratch scratch;
  const std::string keys = scratch / "keys", others = scratch / "others";
  const auto does = [&](std::vector<std::string> words) {
    Command command(words, scratch.path.string(), {"XDG_RUNTIME_DIR=" + scratch.path.string()});
    const int code = command.wait(4 * kPatience);
    INFO(command.err());
    CHECK(code >= 0);
    return std::pair(code, command.out());
  };
  REQUIRE(does({"keys", "--keys", keys}).first == 0);
  REQUIRE(does({"keys", "add", "gone", "--keys", keys, "--output", others}).first == 0);
  REQUIRE(does({"keys", "remove", "gone", "--keys", keys}).first == 0);
  const auto started = does({"start", "--detach", "--json", "--metrics-port", "0", "--listen",
                             "tcp://127.0.0.1:0", "--keys", keys});
  REQUIRE(started.first == 0);
  const auto facts = nlohmann::json::parse(started.second);
  const auto endpoint = facts["endpoint"].get<std::string>();
  for (int i = 0; i < 5; ++i)
    CHECK(does({"status", "--connect", endpoint, "--keys", others}).first == 1);
  std::string log;
  // Who is turned away knows it before it is written down.
  const std::string line = "turned away a peer at 127.0.0.1 with the key ";
  CHECK(eventually(kPatience, [&] {
    log = read_all(facts["log"].get<std::string>());
    return has(log, line) && has(log, "the list of clients does not have this key");
  }));
  const std::string ask = "exec 3<>/dev/tcp/127.0.0.1/" +
                          std::to_string(facts["metrics_port"].get<int>()) +
                          "; printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3";
  CHECK(eventually(kPatience, [&] {
    REQUIRE(std::system(("bash -c '" + ask + "' > " + scratch / "m").c_str()) == 0);
    const std::string metrics = read_all(scratch / "m");
    const auto at = metrics.find("\ntroupe_peers_turned_away_total ");
    REQUIRE(at != std::string::npos);
    return std::stoi(metrics.substr(metrics.find(' ', at))) >= 5;
  }));
  CHECK(does({"stop", "--connect", endpoint, "--keys", keys}).first == 0);
}
