#include "tests/gpu/nccl_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace troupe::testing {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

NcclPeers::NcclPeers(int count) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpu_nccl_peer";
  for (int rank = 0; rank < count; ++rank) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0)
      throw std::runtime_error("no pipe");
    std::vector<std::string> settings = {"NCCL_HOSTID=troupe-rank-" + std::to_string(rank),
                                         "NCCL_SOCKET_IFNAME=lo",
                                         "NCCL_IB_DISABLE=1",
                                         "NCCL_NVLS_ENABLE=0",
                                         "NCCL_RUNTIME_CONNECT=0",
                                         "NCCL_DEBUG=WARN",
                                         "NCCL_DEBUG_FILE=/dev/stderr",
                                         "CUDA_DEVICE_MAX_CONNECTIONS=32"};
    // A kernel that is loaded behind a posted receive would wait for it (tests/gpu/pretend).
    if (!std::getenv("CUDA_MODULE_LOADING")) settings.push_back("CUDA_MODULE_LOADING=EAGER");
    std::vector<char*> environment;
    for (std::string& setting : settings)
      environment.push_back(setting.data());
    for (char** entry = environ; *entry; ++entry)
      if (!std::string(*entry).starts_with("NCCL_")) environment.push_back(*entry);
    environment.push_back(nullptr);
    std::array<char*, 2> arguments = {const_cast<char*>(program.c_str()), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    Peer peer{-1, in[1], out[0], {}, {}};
    const int error = ::posix_spawn(&peer.pid, program.c_str(), &actions, nullptr, arguments.data(),
                                    environment.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    peers_.push_back(peer);
    if (error != 0) throw std::runtime_error("cannot start " + program);
  }
  for (Peer& peer : peers_) {
    const std::string line = line_of(peer, Clock::now() + 90s);
    if (!line.starts_with("at ")) throw std::runtime_error("a peer: " + line);
    peer.address = line.substr(3);
  }
}

NcclPeers::~NcclPeers() {
  for (const Peer& peer : peers_) {
    ::close(peer.input);
    ::close(peer.output);
    if (peer.pid <= 0) continue;
    ::kill(peer.pid, SIGKILL);
    ::waitpid(peer.pid, nullptr, 0);
  }
}

void NcclPeers::tell(const std::string& scenario, int size) {
  const std::string name = scenario + " " + std::to_string(runs_++);
  std::string addresses;
  for (int rank = 0; rank < size; ++rank)
    addresses += "\t" + peers_.at(rank).address;
  for (int rank = 0; rank < size; ++rank) {
    const std::string line = std::to_string(size) + "\t" + std::to_string(rank) + "\t" + name +
                             "\t" + scenario + addresses + "\n";
    if (::write(peers_[rank].input, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("a peer does not listen");
  }
}

std::vector<std::string> NcclPeers::run(const std::string& scenario, int size,
                                        std::chrono::seconds limit) {
  tell(scenario, size);
  const auto deadline = Clock::now() + limit;
  std::vector<std::string> said;
  for (int rank = 0; rank < size; ++rank)
    said.push_back(line_of(peers_[rank], deadline));
  return said;
}

std::vector<std::string> NcclPeers::run_and_kill_last(const std::string& scenario,
                                                      std::chrono::milliseconds after) {
  const int size = static_cast<int>(peers_.size());
  tell(scenario, size);
  std::this_thread::sleep_for(after);
  ::kill(peers_.back().pid, SIGKILL);
  std::vector<std::string> said;
  for (int rank = 0; rank + 1 < size; ++rank)
    said.push_back(line_of(peers_[rank], Clock::now() + 30s));
  return said;
}

std::string NcclPeers::line_of(Peer& peer, Clock::time_point deadline) {
  for (;;) {
    const std::size_t end = peer.buffer.find('\n');
    if (end != std::string::npos) {
      std::string text = peer.buffer.substr(0, end);
      peer.buffer.erase(0, end + 1);
      return text;
    }
    const auto left = std::max<std::int64_t>(0, (deadline - Clock::now()) / 1ms);
    pollfd entry{peer.output, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(left)) <= 0) return "failed says nothing in time";
    std::array<char, 1024> chunk{};
    const ssize_t got = ::read(peer.output, chunk.data(), chunk.size());
    if (got <= 0) return "failed has ended";
    peer.buffer.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace troupe::testing
