// scripts/slurm with an srun of our own: this machine has no Slurm.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// As srun: COMMAND once for each task, with the node's name in the environment.
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

bool is_free(int port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(file);
  return bound;
}

/// A port that is free, as is the next, below those that the kernel gives to outgoing connections.
int free_pair() {
  for (int tried = 0; tried < 5'000; ++tried) {
    const int port = 12'000 + (getpid() * 2 + tried * 2) % 10'000;
    if (is_free(port) && is_free(port + 1)) return port;
  }
  FAIL("no two free ports from 12000 to 22000");
  return 0;
}

}  // namespace

TEST_CASE(
    "a Slurm job: controller on the first node, the others join, the command's picture is there") {
  Scratch scratch;
  const auto srun = scratch.file("srun", kSrun);
  std::filesystem::permissions(srun, std::filesystem::perms::owner_all);
  const std::string folder = scratch / "shared", picture = scratch / "picture.png";
  const auto port = std::to_string(free_pair());
  const std::string troupe = TROUPE_BINARY_DIR "/bin/troupe";
  const std::string line =
      "PATH=" + scratch.path.string() + ":$PATH TROUPE=" + troupe +
      " SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=3 XDG_RUNTIME_DIR=" + scratch.path.string() +
      " timeout 900 " TROUPE_SOURCE_DIR "/scripts/slurm --address 127.0.0.1 --port " + port +
      " --folder " + folder + " --model " + checkpoint("tiny-pixart") + " -- sh -c '" + troupe +
      " status --json >" + (scratch / "status") + " && " + troupe +
      " submit --prompt cat --steps 2 --cfg 2 --ulysses 2 --parallel auto --output " + picture +
      "'";
  // --parallel auto picks the degrees itself: that is refused, and the job's status says so.
  const std::string refused = scratch / "refused";
  CHECK(WEXITSTATUS(std::system((line + " >" + refused + " 2>&1").c_str())) == 2);
  CHECK(has(read_all(refused), "--parallel auto picks the degrees"));

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
  CHECK(!std::filesystem::exists(folder + "/keys"));
  CHECK(has(read_all(folder + "/logs/join-1.log"), "joined"));
}
