#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

using namespace troupe::testing;

namespace {

/// Takes connections, as the kernel does for a process that is stopped, and never says a word.
struct Silent {
  explicit Silent(const std::string& path) : socket(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(socket, 8) == 0);
  }
  ~Silent() { close(socket); }
  const int socket;
};

}  // namespace

TEST_CASE("a controller that is stopped is not taken for one that is not there") {
  const Scratch scratch;
  const Silent silent(scratch / "control.sock");
  const auto result = troupe::testing::troupe("status --connect ipc://" + scratch / "control.sock");
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("somebody listens at ipc://") != std::string::npos);
  CHECK(result.err.find("does not answer") != std::string::npos);
  CHECK(result.err.find(": process " + std::to_string(getpid()) + ", a controller that is") !=
        std::string::npos);
  CHECK(result.err.find("troupe start") == std::string::npos);
}

TEST_CASE("of a controller that is stopped the process is named, and what wakes it") {
  const Scratch scratch;
  const pid_t child = fork();
  if (child == 0) {
    const Silent silent(scratch / "control.sock");
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);
  REQUIRE(WIFSTOPPED(status));
  const auto result = troupe::testing::troupe("status --connect ipc://" + scratch / "control.sock");
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  const auto pid = std::to_string(child);
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("process " + pid + ", which is stopped (`kill -CONT " + pid + "`") !=
        std::string::npos);
}

TEST_CASE("keys that are not there: what makes them") {
  const Scratch scratch;
  const std::string keys = " --keys " + scratch.path.string();
  const auto start = troupe::testing::troupe("start --listen tcp://127.0.0.1:0" + keys);
  CHECK(start.exit_code == 1);
  CHECK(start.err.find("`troupe keys" + keys + "` makes a cluster's keys") != std::string::npos);
  const auto status = troupe::testing::troupe("status --connect 127.0.0.1:9" + keys);
  CHECK(status.exit_code == 1);
  CHECK(status.err.find("`troupe keys add NAME`") != std::string::npos);
}

TEST_CASE("a port of --metrics-port that somebody has") {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(taken, plain, length) == 0);
  REQUIRE(listen(taken, 1) == 0);
  REQUIRE(getsockname(taken, plain, &length) == 0);
  const auto port = std::to_string(ntohs(address.sin_port));
  const auto start =
      troupe::testing::troupe("start --listen tcp://127.0.0.1:0 --metrics-port " + port);
  close(taken);
  CHECK(start.exit_code == 1);
  CHECK(start.err == "troupe: --metrics-port: 127.0.0.1:" + port +
                         " cannot be listened on: Address already in use\n");
}

TEST_CASE("a GPU that is not there: nobody joins for it, nothing runs on it") {
  if (std::filesystem::exists("/dev/nvidia0") || std::filesystem::exists("/dev/dxg")) return;
  const auto run = troupe::testing::troupe("run --device cuda --prompt x --model " TROUPE_SOURCE_DIR
                                           "/tests/fixtures/tiny-pixart");
  CHECK(run.exit_code == 1);
  CHECK(run.out.empty());
  // From the driver, which answers at once, not from LibTorch's other half.
  CHECK(run.err.find("device cuda:0 is not there: this machine has ") != std::string::npos);
  CHECK(run.err.find("LibTorch") == std::string::npos);
  const auto result =
      troupe::testing::troupe("join --device cuda --connect 127.0.0.1:9 --actors 2 --wait 0");
  CHECK(result.exit_code == 1);
  CHECK(result.out.empty());
  CHECK(result.err.starts_with("troupe: device cuda:1 "));
}
