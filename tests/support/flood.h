#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace troupe::testing {

/// A limit of this process's descriptors, soft, while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit fewer{most, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &fewer);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

/// Words of a stranger before it falls silent: nothing; all that ZeroMQ asks for where there are no
/// keys, and then no hello; or the first half of what it asks for where there are.
enum class Says { nothing, handshake, half_of_keyed_handshake };

/// A process that connects to an endpoint so many times, and again where it is cut off, until it
/// goes out of scope.
class Flood {
 public:
  Flood(const std::string& endpoint, int connections, Says says = Says::nothing) {
    int ready[2];
    if (pipe(ready) != 0 || (pid_ = fork()) < 0) throw std::runtime_error("no flood");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      run(endpoint, connections, says, ready[1]);
    }
    close(ready[1]);
    char byte = 0;
    const auto got = read(ready[0], &byte, 1);
    close(ready[0]);
    if (got != 1) throw std::runtime_error("the flood did not come");
  }
  ~Flood() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  /// Returns a socket that has connected and said these words, or -1.
  static int connect_to(const std::string& endpoint, Says says) {
    const bool ipc = endpoint.rfind("ipc://", 0) == 0;
    const int link = socket(ipc ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link < 0) return -1;
    sockaddr_un local{};
    sockaddr_in there{};
    if (ipc) {
      local.sun_family = AF_UNIX;
      std::strncpy(local.sun_path, endpoint.c_str() + 6, sizeof local.sun_path - 1);
    } else {
      there.sin_family = AF_INET;
      there.sin_port =
          htons(static_cast<std::uint16_t>(std::atoi(endpoint.c_str() + endpoint.rfind(':') + 1)));
      there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    const auto* address =
        ipc ? reinterpret_cast<sockaddr*>(&local) : reinterpret_cast<sockaddr*>(&there);
    if (connect(link, address, ipc ? sizeof local : sizeof there) != 0) {
      close(link);
      return -1;
    }
    if (says != Says::nothing) {
      // ZMTP 3.0: a greeting with its mechanism, then READY of a DEALER without a name, or the
      // beginning of CURVE's HELLO, which has 200 bytes.
      const bool keyed = says == Says::half_of_keyed_handshake;
      std::string said("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0", 12);
      said += keyed ? "CURVE" : "NULL";
      said.resize(64);
      said += keyed ? std::string("\x04\xc8\x05HELLO\x01\0", 10) + std::string(72, '\0')
                    : std::string(
                          "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06"
                          "DEALER\x08Identity\0\0\0\0",
                          43);
      if (send(link, said.data(), said.size(), MSG_NOSIGNAL) < 0) errno = 0;
    }
    return link;
  }

 private:
  static constexpr int kMost = 4096;

  [[noreturn]] static void run(const std::string& endpoint, int connections, Says says, int ready) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    static int links[kMost];
    for (int i = 0; i < connections; ++i)
      links[i] = connect_to(endpoint, says);
    if (write(ready, "r", 1) != 1) _exit(1);
    for (;;) {
      for (int i = 0; i < connections; ++i) {
        char said[256];
        ssize_t got = 1;
        while (links[i] >= 0 && (got = recv(links[i], said, sizeof said, MSG_DONTWAIT)) > 0) {
        }
        if (links[i] >= 0 && (got > 0 || errno == EAGAIN)) continue;
        if (links[i] >= 0) close(links[i]);
        links[i] = connect_to(endpoint, says);
      }
      usleep(20'000);
    }
  }

  pid_t pid_ = -1;
};

}  // namespace troupe::testing
