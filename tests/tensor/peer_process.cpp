#include "tests/tensor/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <stdexcept>

extern char** environ;

namespace troupe::tensor::testing {

PeerProcess::PeerProcess(const std::vector<std::string>& arguments) {
  std::array<int, 2> in{}, out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0)
    throw_errno("pipe2");
  const UniqueFd child_in(in[0]), child_out(out[1]);
  input_ = UniqueFd(in[1]);
  output_ = UniqueFd(out[0]);
  const std::string program = std::string(TROUPE_BINARY_DIR) + "/bin/tensor_peer";
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, child_in.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, child_out.get(), 1);
  const int error = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + program);
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      buffer_(std::move(other.buffer_)),
      pid_(std::exchange(other.pid_, -1)) {}

PeerProcess::~PeerProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::string PeerProcess::line() {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string text = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return text;
    }
    pollfd entry{output_.get(), POLLIN, 0};
    if (::poll(&entry, 1, 60'000) <= 0) throw std::runtime_error("the peer says nothing");
    std::array<char, 1024> chunk{};
    const ssize_t got = ::read(output_.get(), chunk.data(), chunk.size());
    if (got <= 0) throw std::runtime_error("the peer ended");
    buffer_.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

void PeerProcess::say(const std::string& text) {
  if (::write(input_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw_errno("writing to the peer");
}

void PeerProcess::signal(int number) {
  ::kill(pid_, number);
}

void PeerProcess::await_end() const {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
}

}  // namespace troupe::tensor::testing
