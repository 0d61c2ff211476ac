// Actors on a machine that says it has two NUMA nodes, a CPU each.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <thread>

#include "controller/app/joined_host.h"
#include "controller/hosts/affinity.h"
#include "controller/hosts/numa.h"
#include "tests/client/run_command.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

/// Two nodes of the first two CPUs that this process may use.
struct TwoNodes {
  Scratch folder;
  std::vector<int> all = cluster::allowed_cpus();

  TwoNodes() {
    for (std::size_t node = 0; node < 2 && node < all.size(); ++node) {
      const auto at = "sys/devices/system/node/node" + std::to_string(node);
      std::filesystem::create_directories(folder.path / at);
      folder.file(at + "/cpulist", cpu(node) + "\n");
    }
  }
  std::string cpu(std::size_t node) const { return std::to_string(all.at(node)); }
  std::string root() const { return folder.path.string(); }
  std::string everywhere() const { return cluster::cpu_list_text(all); }
  bool missing() const {
    if (all.size() < 2) MESSAGE("skipped: this process may use one CPU only");
    return all.size() < 2;
  }
};

std::string cpus_of(const std::filesystem::path& status) {
  std::istringstream lines(read_all(status));
  for (std::string line; std::getline(lines, line);) {
    const std::string key = "Cpus_allowed_list:\t";
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return "not said";
}

/// Returns the CPUs of all threads of a process; "several" where they differ.
std::string cpus_of(pid_t pid) {
  std::string found;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    const auto own = cpus_of(thread.path() / "status");
    if (own == "not said") continue;  // it has ended meanwhile
    if (!found.empty() && own != found) return "several";
    found = own;
  }
  return found;
}

std::vector<std::string> cpus_of(const std::vector<pid_t>& pids) {
  std::vector<std::string> all;
  for (const auto pid : pids)
    all.push_back(cpus_of(pid));
  return all;
}

}  // namespace

TEST_CASE(
    "each actor runs on its node, so does the next one in its place, the controller anywhere") {
  TwoNodes nodes;
  if (nodes.missing()) return;
  auto options = actors(2);
  options.machine_root = nodes.root();
  FaultCluster cluster(options);
  const std::vector<std::string> own = {nodes.cpu(0), nodes.cpu(1)};
  CHECK(cpus_of(cluster.pids()) == own);
  CHECK(cpus_of(getpid()) == nodes.everywhere());

  auto submission = tiny_job();
  submission.parallelism.pp = 2;
  CHECK(cluster.run(submission).pictures.size() == 1);
  CHECK(cpus_of(cluster.pids()) == own);

  kill(cluster.pids().at(1), SIGKILL);
  REQUIRE(eventually(kPatience, [&] { return cluster.restarts() == 1; }));
  REQUIRE(cluster.whole());
  CHECK(cpus_of(cluster.pids()) == own);

  const auto logs = testing::troupe("logs 1 --connect " + cluster.cluster().endpoint());
  CHECK(has(logs.out, " began on NUMA node 1, CPUs " + nodes.cpu(1)));
}

TEST_CASE("without pins, and where threads would be crowded, actors run where the controller may") {
  TwoNodes nodes;
  if (nodes.missing()) return;
  auto options = actors(2);
  options.machine_root = nodes.root();
  SUBCASE("--pin none") {
    options.pin = "none";
  }
  SUBCASE("more threads than a node has CPUs") {
    options.actors = 1;
    options.threads_per_actor = 2;
  }
  SUBCASE("a file that says nothing that makes sense") {
    nodes.folder.file("sys/devices/system/node/node0/cpulist", "all of them");
  }
  FaultCluster cluster(options);
  for (const auto pid : cluster.pids())
    CHECK(cpus_of(pid) == nodes.everywhere());
  CHECK(cluster.run(tiny_job()).pictures.size() == 1);
}

TEST_CASE("a host that joins pins its actors by its own nodes and its own count") {
  TwoNodes nodes;
  if (nodes.missing()) return;
  auto options = actors(1);
  options.listen = "tcp://127.0.0.1:0";
  options.pin = "none";
  FaultCluster cluster(options);
  cluster::JoinOptions join;
  join.endpoint = cluster.cluster().endpoint();
  join.name = "beta";
  join.actors = 2;
  join.actor_program = options.actor_program;
  join.machine_root = nodes.root();
  cluster::JoinedHost host(join);
  std::thread guest([&] { host.run([] {}); });
  const auto pids = [&] {
    std::vector<pid_t> found;
    for (const auto& actor : cluster.status().actors) {
      if (actor.host == "beta" && actor.state == ActorState::ready)
        found.push_back(static_cast<pid_t>(actor.pid));
    }
    return found;
  };
  CHECK(eventually(kPatience, [&] { return pids().size() == 2; }));
  CHECK(cpus_of(pids()) == std::vector<std::string>{nodes.cpu(0), nodes.cpu(1)});
  host.stop();
  guest.join();
}

TEST_CASE("--pin knows two words") {
  const auto wrong = testing::troupe("start --pin cores");
  CHECK(wrong.exit_code == 2);
  CHECK(has(wrong.err, "--pin"));
  for (const char* verb : {"start", "join", "run"})
    CHECK(has(testing::troupe(std::string(verb) + " --help").out, "--pin"));
}
