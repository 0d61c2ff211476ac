// Users' actors on more than one host: agents of `troupe join` as processes of this machine, under
// other names, with keys on every link.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "tests/process/support/plugin_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "tests/user_actors/classes.h"
#include "troupe/actor.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

pid_t parent_of(pid_t pid) {
  const auto text = read_all("/proc/" + std::to_string(pid) + "/stat");
  const auto rest = text.substr(text.rfind(')') + 1);
  return static_cast<pid_t>(std::stol(rest.substr(3)));
}

}  // namespace

TEST_CASE("users' actors on three hosts: placed by rule, and tensors go round between them") {
  PluginCluster cluster;
  auto& beta = cluster.join("beta");
  auto& gamma = cluster.join("gamma");
  auto users = cluster.users();

  std::vector<ActorHandle<Probe>> ring;
  std::set<std::string> hosts;
  for (int i = 0; i < 3; ++i) {
    ring.push_back(value_of(users.spawn<Probe>({.placement = "spread", .group = "ring"}, "r")));
    hosts.insert(cluster.host_of(ring.back()));
  }
  CHECK(hosts == std::set<std::string>{cluster.here(), "beta", "gamma"});
  for (const auto& member : ring) {
    const auto info = cluster.info(member.id());
    const pid_t agent = info.host == "beta"    ? beta.pid()
                        : info.host == "gamma" ? gamma.pid()
                                               : getpid();
    CHECK(parent_of(static_cast<pid_t>(info.pid)) == agent);
  }
  // 400 kB, from actor to actor; then a small one the same way.
  for (const std::int64_t elements : {100'000, 10}) {
    auto tensor = ring[0].call<&Probe::array>(elements, 1.f);
    for (int lap = 0; lap < 2; ++lap) {
      for (auto& member : ring)
        tensor = member.call<&Probe::twice>(tensor);
    }
    CHECK(value_of(ring[1].call<&Probe::sum>(tensor).wait(kPatience)) == 64.0 * double(elements));
  }
  // Large arguments from here, large results to here.
  for (auto& member : ring) {
    CHECK(value_of(member.call<&Probe::blob>(3'000'000).wait(kPatience)).size() == 3'000'000);
    CHECK(value_of(member.call<&Probe::sum>(Array::of(std::vector<float>(500'000, 1.f), {500'000}))
                       .wait(kPatience)) == 500'000);
  }
  // Handles as arguments, actors that spawn and find actors, on whichever host.
  auto counter = value_of(users.spawn<Counter>({.name = "c"}, 0));
  std::int64_t sum = 0;
  for (auto& member : ring)
    CHECK(value_of(member.call<&Probe::call_other>(counter, 5).wait(kPatience)) == (sum += 5));
  for (auto& member : ring) {
    auto found = value_of(member.call<&Probe::find_counter>("c").wait(kPatience));
    CHECK(found.id() == counter.id());
    auto made = value_of(member.call<&Probe::spawn_counter>(7, false).wait(kPatience));
    CHECK(value_of(made.call<&Counter::value>().wait(kPatience)) == 7);
  }

  // Together: all on one host, and full when that is.
  const double cores = std::thread::hardware_concurrency();
  auto first = value_of(users.spawn<Counter>(
      {.resources = {.cores = cores / 2}, .placement = "together", .group = "t"}, 0));
  auto second = value_of(users.spawn<Counter>(
      {.resources = {.cores = cores / 2}, .placement = "together", .group = "t"}, 0));
  CHECK(cluster.host_of(first) == cluster.host_of(second));
  const auto third =
      users.spawn<Counter>({.resources = {.cores = 1}, .placement = "together", .group = "t"}, 0);
  REQUIRE(!third);
  CHECK(has(third.error().what, "its group is on " + cluster.host_of(first)));

  // Cores are each host's own.
  auto large = value_of(users.spawn<Counter>({.resources = {.cores = cores}}, 0));
  auto larger = value_of(users.spawn<Counter>({.resources = {.cores = cores}}, 0));
  CHECK(cluster.host_of(large) != cluster.host_of(larger));
  const auto none = users.spawn<Counter>({.resources = {.cores = cores}}, 0);
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::overloaded);
  for (const std::string host : {"beta has 0 of", "gamma has 0 of"})
    CHECK(has(none.error().what, host));

  // An actor that goes is told with its signal and its method, as on the controller's own host.
  auto victim = cluster.probe_on("beta");
  std::promise<Death> death;
  value_of(victim.monitor([&](const Death& how) { death.set_value(how); }));
  const auto crash = victim.call<&Probe::crash>(SIGSEGV).wait(kPatience);
  CHECK(has(crash.error().what, "killed by signal 11 (SIGSEGV)"));
  CHECK(has(crash.error().what, "in crash: about to crash"));
  auto told = death.get_future();
  REQUIRE(told.wait_for(kPatience) == std::future_status::ready);
  CHECK(told.get().method == "crash");
  CHECK(!users.spawn<Fussy>({.placement = "spread", .group = "f"}, false));
  value_of(users.kill(cluster.probe_on("gamma").id()));

  const auto hung =
      cluster.probe_on("gamma", {.hang_after = 300ms}).call<&Probe::sleep>(600'000).wait(kPatience);
  REQUIRE(!hung);
  CHECK(has(hung.error().what, "has ended: hung in sleep for "));
}

TEST_CASE("nobody calls an actor without the keys that the controller gives out") {
  PluginCluster cluster;
  cluster.join("beta");
  auto probe = cluster.probe_on("beta");
  // Its door is on tcp; find it among the sockets that its process listens on.
  const auto pid = cluster.info(probe.id()).pid;
  std::set<int> ports;
  const auto table = read_all("/proc/" + std::to_string(pid) + "/net/tcp");
  std::set<std::string> inodes;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    const auto to = fs::read_symlink(entry.path(), error).string();
    if (to.starts_with("socket:[")) inodes.insert(to.substr(8, to.size() - 9));
  }
  std::istringstream lines(table);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
    if (words.size() < 10 || words[3] != "0A" || !inodes.contains(words[9])) continue;
    ports.insert(std::stoi(words[1].substr(words[1].find(':') + 1), nullptr, 16));
  }
  REQUIRE(ports.size() == 2);  // calls, and large values
  for (const int port : ports) {
    const auto at = "tcp://127.0.0.1:" + std::to_string(port);
    // Whoever has no keys, or those of the cluster's clients, does not come as far as the ticket.
    for (const auto& keys : {std::string(), cluster.keys()}) {
      const auto client = Client::connect(at, kPatience, keys);
      REQUIRE(!client);
      CAPTURE(client.error().what);
      CHECK(!has(client.error().what, "ticket"));
      CHECK(has(client.error().what, "key"));
    }
  }
  CHECK(value_of(probe.call<&Probe::name>().wait(kPatience)) == "p");
}

TEST_CASE("plugins are looked at on every host: missing, another version, in another place") {
  Scratch scratch;
  const auto plugin = scratch / "libcast.so";
  fs::copy_file(kPlugin, plugin);
  PluginCluster cluster(plugin);
  auto users = cluster.users();

  fs::rename(plugin, scratch / "away.so");
  cluster.join("beta");
  fs::rename(scratch / "away.so", plugin);
  CHECK(cluster.why_not("beta") ==
        "beta: [plugin] " + plugin + ": there is no such file on this host");
  CHECK(has(cluster.failures(), "on beta: [plugin] " + plugin));

  fs::create_directory(scratch / "other");
  const auto other = scratch / "other/libcast.so";
  fs::copy_file(kPlugin, other);
  {
    std::ofstream tail(other, std::ios::app | std::ios::binary);
    tail << "x";  // loads as before, and is not the same
  }
  cluster.join("gamma", {"--plugin", other});
  CHECK(has(cluster.why_not("gamma"), other + ": is another version than on "));

  fs::create_directory(scratch / "own");
  const auto own = scratch / "own/libcast.so";
  fs::copy_file(kPlugin, own);
  cluster.join("delta", {"--plugin", own});
  CHECK(cluster.why_not("delta") == "");
  CHECK(value_of(cluster.probe_on("delta").call<&Probe::name>().wait(kPatience)) == "p");

  // What cannot be placed says what each host lacks.
  const double cores = std::thread::hardware_concurrency();
  for (int i = 0; i < 2; ++i)
    value_of(users.spawn<Counter>({.resources = {.cores = cores}}, 0));
  const auto none = users.spawn<Counter>({.resources = {.cores = 1}}, 0);
  REQUIRE(!none);
  CHECK(has(none.error().what, "beta cannot have it ([plugin] "));
  CHECK(has(none.error().what, "gamma cannot have it ([plugin] "));
  CHECK(has(none.error().what, "delta has 0 of "));

  // What nobody has named on this host is not loaded, wherever the controller says that it lies.
  cluster.join("zeta", {});
  CHECK(has(cluster.why_not("zeta"), "without --plugin libcast.so (or --any-plugin)"));
  cluster.join("eta", {"--any-plugin"});
  CHECK(cluster.why_not("eta") == "");

  const auto stranger = cluster.start("epsilon", {"--plugin", kPlugin});
  CHECK(stranger->wait(kPatience) == 1);
  CHECK(has(stranger->err(), "the cluster was started without a plugin called"));
}

}  // namespace troupe::testing
