// What a cluster says of its own speed: measured on each host as it starts, and over its link.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/joined_host_process.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

TEST_CASE("a cluster plans with what it measured of its hosts and their links") {
  FaultCluster cluster(open_to_hosts(2));
  REQUIRE(cluster.whole());
  const auto endpoint = cluster.cluster().endpoint();
  auto inspector = take(Inspector::connect(endpoint, kPatience), "connect");
  const auto told = [&] { return nlohmann::json::parse(take(inspector.machine(), "machine")); };
  const auto alone = told();
  CHECK(alone["measured"] == true);
  CHECK(alone["hosts"] == nlohmann::json({2}));
  // No constants: figures of a computer that computes, and of shared memory.
  CHECK(alone["device"]["float_flops"] > 1e6);
  CHECK(alone["device"]["float_flops"] != 1.05e11);
  CHECK(alone["inside"]["bandwidth"] > 1e5);
  CHECK(alone["inside"]["latency"] != 4.4e-6);

  JoinedHostProcess far(cluster, "far", 1);
  REQUIRE(far.all(ActorState::ready, 1));
  REQUIRE(eventually(kPatience, [&] { return told()["between"]["latency"] != 24e-6; }));
  const auto together = told();
  CHECK(together["hosts"] == nlohmann::json({2, 1}));
  CHECK(together["notes"].size() == 3);
  CHECK(together["device"]["float_flops"] <= alone["device"]["float_flops"]);

  Scratch folder;
  Command plan({"plan", "--model", std::string(TROUPE_SOURCE_DIR) + "/examples/demo/model",
                "--parallel", "auto", "--connect", endpoint},
               folder.path.string());
  CHECK(plan.wait(kPatience) == 0);
  CAPTURE(plan.err());
  CHECK(has(plan.out(), "predicted for this cluster, 3 actors"));
  CHECK(has(plan.out(), "measured on far"));
  CHECK(has(plan.out(), "measured from the controller to far, over the control plane"));
}

TEST_CASE("run has the actors that there may be measure, and as many compute as are picked") {
  Scratch folder;
  const auto logs = folder.path / "logs";
  // More than most of them are worth: degrees that were picked beforehand would start fewer. An odd
  // number leaves no branch of guidance to each half of the actors, so all of them do not pay.
  const int actors = (2 + static_cast<int>(std::thread::hardware_concurrency())) | 1;
  Command run({"run",
               "--model",
               std::string(TROUPE_SOURCE_DIR) + "/examples/demo/model",
               "--prompt",
               "a red circle",
               "--height",
               "128",
               "--width",
               "128",
               "--steps",
               "2",
               "--parallel",
               "auto",
               "--actors",
               std::to_string(actors),
               "--keep-logs",
               logs.string(),
               "--output",
               folder.path / "out.png",
               "--json"},
              folder.path.string());
  REQUIRE(run.wait(4 * kPatience) == 0);
  CAPTURE(run.err());
  const auto report = nlohmann::json::parse(run.out());
  const auto computed = report["actors"].size();
  CHECK(computed >= 1);
  CHECK(computed < static_cast<std::size_t>(actors));
  const auto started = std::distance(std::filesystem::directory_iterator(logs), {});
  CHECK(started == actors);
}
