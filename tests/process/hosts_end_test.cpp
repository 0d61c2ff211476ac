// The end of a cluster at the hosts that joined it.
#include <signal.h>

#include <memory>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/joined_host_process.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/free_ports.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("the cluster's end ends the hosts that joined; nobody there is said in time") {
  Scratch scratch;
  const auto endpoint = endpoint_to_come_back_to();
  auto options = open_to_hosts(1);
  options.listen = endpoint;
  auto cluster = std::make_unique<FaultCluster>(options);
  JoinedHostProcess beta(*cluster, "beta", 2);
  REQUIRE(beta.all(ActorState::ready, 2));
  const auto pids = beta.pids();
  cluster->cluster().stop();
  const int code = beta.command().wait(kPatience);
  INFO(beta.command().err());
  CHECK(code == 0);
  CHECK(gone(pids));

  for (const char* seconds : {"0", "1"}) {
    Command nobody({"join", "--connect", endpoint, "--wait", seconds}, scratch.path.string());
    CHECK(nobody.wait(kPatience) == 1);
    const bool waits = std::string(seconds) != "0";
    INFO(nobody.err());
    CHECK(has(nobody.err(), "waiting for a controller at " + endpoint + ", for 1 s") == waits);
    CHECK(has(nobody.err(), "no controller"));
    // The time told is the whole wait's, not the last look's, which is one of a second.
    CHECK(has(nobody.err(), waits ? " s)" : "(waited 1000 ms)"));
    if (waits) CHECK(!has(nobody.err(), " ms)"));
  }
}

TEST_CASE("a controller that is killed leaves no actor on any host") {
  Scratch scratch;
  Command controller({"start", "--actors", "1", "--listen", "tcp://127.0.0.1:0"},
                     scratch.path.string());
  std::string endpoint;
  REQUIRE(eventually(kPatience, [&] {
    const auto text = controller.out();
    const auto at = text.find("tcp://");
    if (at == std::string::npos || text.find('\n', at) == std::string::npos) return false;
    endpoint = text.substr(at, text.find('\n', at) - at);
    return true;
  }));
  Scratch other;
  Command join({"join", "--connect", endpoint, "--actors", "2", "--name", "beta", "--wait", "15"},
               other.path.string());
  REQUIRE(eventually(kPatience, [&] { return actors_of(join.pid()).size() == 2; }));
  const auto pids = actors_of(join.pid());
  controller.signal(SIGKILL);
  CHECK(join.wait(kPatience) == 1);
  CHECK(has(join.err(), "controller is lost"));
  CHECK(gone(pids));
}
