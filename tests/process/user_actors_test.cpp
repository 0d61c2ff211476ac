#include <signal.h>

#include <fstream>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/plugin_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/user_actors/classes.h"
#include "tests/user_actors/torch_classes.h"
#include "troupe/actor.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

cluster::ClusterOptions with_plugins(std::vector<std::string> plugins) {
  auto options = actors(1);
  options.plugins = std::move(plugins);
  return options;
}

const std::string kTorchPlugin = TROUPE_BINARY_DIR "/lib/libtroupe_test_torch_plugin.so";

}  // namespace

TEST_CASE("users' actors beside stage actors: both work, and all end with the cluster") {
  std::vector<pid_t> pids;
  {
    FaultCluster cluster(with_plugins({kPlugin}));
    auto users = cluster.client().actors();
    auto counter = value_of(users.spawn<Counter>({.name = "c", .detached = true}, 1));
    const auto job = cluster.submit(tiny_job());
    CHECK(value_of(counter.call<&Counter::add>(1).wait(kPatience)) == 2);
    CHECK(cluster.client().wait(job, 600s).ok());
    for (const auto& actor : value_of(users.list()))
      pids.push_back(static_cast<pid_t>(actor.pid));
    REQUIRE(pids.size() == 1);
    CHECK(is_alive(pids[0]));
  }
  CHECK(gone(pids));
}

TEST_CASE("a class that asks for torch runs where torch is") {
  FaultCluster cluster(with_plugins({kPlugin, kTorchPlugin}));
  auto users = cluster.client().actors();
  auto multiplier = value_of(users.spawn<Multiplier>({}, 3));
  auto probe = value_of(users.spawn<Probe>({}, "p"));
  auto made = probe.call<&Probe::array>(50'000, 2.f);
  auto tripled = multiplier.call<&Multiplier::times>(made);
  CHECK(value_of(probe.call<&Probe::sum>(tripled).wait(kPatience)) == 300'000);
}

TEST_CASE("a plugin that cannot be used keeps the cluster from starting, with the reason") {
  cluster::Cluster cluster(with_plugins({kPlugin, "/nowhere/lib.so"}));
  std::string why;
  try {
    cluster.wait_ready(kPatience);
  } catch (const std::exception& error) {
    why = error.what();
  }
  CHECK(why.find("[plugin] /nowhere/lib.so: there is no such file on this host") !=
        std::string::npos);
}

}  // namespace troupe::testing
