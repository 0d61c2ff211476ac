// With an srun of our own: machines that test need have no Slurm. benchmarks/results/losses.md
// tells of the real one.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "tests/process/support/connect.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/free_ports.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Script in the place of srun: runs COMMAND once per task, with the node's name in the
/// environment.
constexpr const char* kSrun = R"(#!/usr/bin/env bash
set -u
while [[ $1 == --* ]]; do
  case $1 in --ntasks=*) tasks=${1#*=} ;; --output=*) output=${1#*=} ;; --relative=*) first=${1#*=} ;; esac
  shift
done
for ((task = 0; task < tasks; task++)); do
  SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=0 SLURMD_NODENAME=node$((first + task)) \
    "$@" >"${output//%t/$task}" 2>&1 &
done
wait
)";

}  // namespace

TEST_CASE(
    "a Slurm job: controller on the first node, the others join, the command's picture is there") {
  Scratch scratch;
  const auto srun = scratch.file("srun", kSrun);
  std::filesystem::permissions(srun, std::filesystem::perms::owner_all);
  const std::string folder = scratch / "shared", picture = scratch / "picture.png";
  const auto port = std::to_string(free_port_pair());
  const std::string troupe = TROUPE_BINARY_DIR "/bin/troupe";
  const std::string line =
      "PATH=" + scratch.path.string() + ":$PATH TROUPE=" + troupe +
      " SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=3 XDG_RUNTIME_DIR=" + scratch.path.string() +
      " timeout 900 " TROUPE_SOURCE_DIR "/scripts/slurm --address 127.0.0.1 --port " + port +
      " --folder " + folder + " --model " + checkpoint("tiny-pixart") +
      " --http 127.0.0.1:0 -- sh -c '" + troupe + " status --json >" + (scratch / "status") +
      " && [ $TROUPE_API_KEY = $(cat " + folder +
      "/api-key) ] && " TROUPE_SOURCE_DIR "/deploy/health ${TROUPE_URL##*:} && " + troupe +
      " submit --prompt cat --steps 2 --cfg 2 --ulysses 2 --parallel auto --output " + picture +
      "'";
  // --parallel auto picks the degrees itself: that is refused, and the job's status says so.
  const std::string refused = scratch / "refused";
  CHECK(WEXITSTATUS(std::system((line + " >" + refused + " 2>&1").c_str())) == 2);
  INFO(read_all(refused));
  CHECK(has(read_all(refused), "--parallel is auto, which picks the degrees"));

  auto good = line;
  good.replace(good.find(" --cfg 2 --ulysses 2"), std::string(" --cfg 2 --ulysses 2").size(), "");
  const std::string output = scratch / "output";
  const int code = std::system((good + " >" + output + " 2>&1").c_str());
  INFO(read_all(output));
  CHECK(WEXITSTATUS(code) == 0);
  CHECK(has(read_all(output), "3 nodes, 3 actors at tcp://127.0.0.1:" + port));
  CHECK(std::filesystem::file_size(picture) > 100);
  const auto status = read_all(scratch / "status");
  CHECK(has(status, "\"node1\""));
  CHECK(has(status, "\"node2\""));
  for (const char* gone : {"/keys", "/api-key", "/url"})
    CHECK(!std::filesystem::exists(folder + gone));
  CHECK(has(read_all(output), "HTTP at http://127.0.0.1:"));
  CHECK(has(read_all(folder + "/logs/join-1.log"), "joined"));
}

TEST_CASE("srun troupe join, no more: rank and hosts are taken from the environment") {
  const Scratch scratch;
  const auto port = std::to_string(free_port_pair());
  Command controller({"start", "--listen", "tcp://127.0.0.1:" + port}, scratch.path.string());
  REQUIRE(eventually(kPatience, [&] { return has(controller.out(), "ready"); }));
  std::vector<std::unique_ptr<Command>> tasks;
  // The last rank comes first. On the controller's own node nobody joins.
  for (int rank = 2; rank >= 0; --rank) {
    const std::string node = rank == 0 ? "localhost" : "node" + std::to_string(rank);
    tasks.push_back(std::make_unique<Command>(
        std::vector<std::string>{"join", "--port", port}, scratch.path.string(),
        std::vector<std::string>{
            "SLURM_STEP_ID=0", "SLURM_PROCID=" + std::to_string(rank), "SLURM_LOCALID=0",
            "SLURMD_NODENAME=" + node, "SLURM_JOB_NODELIST=localhost,node[1-2]",
            "SLURM_STEP_NODELIST=localhost,node[1-2]", "SLURM_STEP_TASKS_PER_NODE=1(x3)"}));
    if (rank == 2)
      REQUIRE(eventually(kPatience, [&] {
        return has(tasks.front()->err(), "waiting for node1, the rank before, to join, for 60 s");
      }));
  }
  CHECK(tasks[2]->wait(kPatience) == 0);
  CHECK(has(tasks[2]->out(), "localhost is left to the controller"));
  auto client = take(Client::connect("tcp://127.0.0.1:" + port, kPatience), "connect");
  std::vector<std::string> hosts;
  CHECK(eventually(kPatience, [&] {
    hosts.clear();
    const auto status = client.status();
    REQUIRE(status);
    for (const auto& actor : status.value().actors)
      hosts.push_back(actor.host);
    return hosts.size() == 3;
  }));
  REQUIRE(hosts.size() == 3);
  CHECK(hosts[1] == "node1");
  CHECK(hosts[2] == "node2");
  controller.signal(SIGTERM);
  CHECK(controller.wait(kPatience) == 0);
  CHECK(tasks[0]->wait(kPatience) == 0);
  CHECK(tasks[1]->wait(kPatience) == 0);
}

TEST_CASE(
    "srun troupe join waits for the rank before no longer than it may, nor where none helps") {
  const Scratch scratch;
  const std::string keys = scratch / "keys", endpoint = endpoint_to_come_back_to();
  const auto joins = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"join", "--connect", endpoint};
    words.insert(words.end(), more.begin(), more.end());
    Command command(words, scratch.path.string(),
                    {"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_LOCALID=0", "SLURMD_NODENAME=b",
                     "SLURM_STEP_NODELIST=a,b", "SLURM_STEP_TASKS_PER_NODE=1(x2)"});
    CHECK(command.wait(kPatience) != 0);
    return command.err();
  };
  const std::string over = "a, the rank before, has not joined within ";
  CHECK(has(joins({"--wait", "1"}), over + "1 s"));
  Command made({"keys", "--keys", keys}, scratch.path.string());
  REQUIRE(made.wait(kPatience) == 0);
  Command controller({"start", "--listen", endpoint, "--keys", keys}, scratch.path.string());
  REQUIRE(eventually(kPatience, [&] { return has(controller.out(), "ready"); }));
  const auto bare = joins({});
  CHECK(has(bare, "asks for keys"));
  CHECK(!has(bare, over));
  controller.signal(SIGTERM);
  CHECK(controller.wait(kPatience) == 0);
}
