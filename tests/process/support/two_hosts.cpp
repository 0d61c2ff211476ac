#include "tests/process/support/two_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/files.h"
#include "tests/process/support/processes.h"

namespace troupe::testing {
namespace {

void must(const std::string& line) {
  if (!does(line)) throw std::runtime_error("[tests] " + line);
}

}  // namespace

bool does(const std::string& line) {
  const int status = std::system(line.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TwoHosts::TwoHosts()
    : a_("troupe-a-" + std::to_string(getpid())), b_("troupe-b-" + std::to_string(getpid())) {
  must("ip netns add " + a_);
  must("ip netns add " + b_);
  must("ip -n " + a_ + " link add eth type veth peer name eth netns " + b_);
  for (const auto& [space, address] : {std::pair{a_, "10.77.0.1"}, std::pair{b_, "10.77.0.2"}}) {
    must("ip -n " + space + " addr add " + address + "/24 dev eth");
    must("ip -n " + space + " link set eth up");
    must("ip -n " + space + " link set lo up");
  }
}

TwoHosts::~TwoHosts() {
  does("ip netns del " + a_ + " 2>/dev/null");
  does("ip netns del " + b_ + " 2>/dev/null");
}

bool TwoHosts::possible() {
  const std::string name = "troupe-try-" + std::to_string(getpid());
  if (!does("ip netns add " + name + " 2>/dev/null")) return false;
  // In a chroot a namespace can be made, but no mounts of its own, which the tests need.
  const bool enough =
      does("ip -n " + name + " link add one type veth peer name other 2>/dev/null && " +
           "unshare -m true 2>/dev/null");
  return does("ip netns del " + name) && enough;
}

void TwoHosts::cut() {
  must("ip -n " + b_ + " link set eth down");
}
void TwoHosts::mend() {
  must("ip -n " + b_ + " link set eth up");
}
void TwoHosts::cut_one_way() {
  must("ip -n " + b_ + " neigh replace 10.77.0.1 lladdr 02:00:00:00:00:99 dev eth nud permanent");
}
void TwoHosts::mend_one_way() {
  must("ip -n " + b_ + " neigh del 10.77.0.1 dev eth");
}

std::string TwoHosts::on_a(const std::string& line) const {
  return "exec ip netns exec " + a_ + " " + line;
}
std::string TwoHosts::on_b(const std::string& line) const {
  return "exec ip netns exec " + b_ + " " + line;
}

void TwoHosts::be_on_a(const std::function<void()>& action) const {
  std::exception_ptr failure;
  std::thread there([&] {
    try {
      const FileHandle space(open(("/var/run/netns/" + a_).c_str(), O_RDONLY | O_CLOEXEC));
      if (!space || setns(space.get(), CLONE_NEWNET) != 0)
        throw std::runtime_error("[tests] setns " + a_);
      action();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  there.join();
  if (failure) std::rethrow_exception(failure);
}

Background::Background(const std::string& line) : pid_(fork()) {
  if (pid_ == 0) {
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(127);
  }
}

Background::~Background() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

int Background::wait(std::chrono::milliseconds deadline) {
  int status = -1;
  if (!eventually(deadline, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace troupe::testing
