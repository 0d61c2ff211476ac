#pragma once
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/files.h"

namespace troupe::testing {

/// True when nothing is bound to the port on loopback.
inline bool is_free(int port) {
  const FileHandle socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

/// Returns a port that is free, as is the next, for servers that come back to it. Both lie below
/// those that Linux gives to outgoing connections, so nobody takes them while the server is away,
/// (by net.ipv4.ip_local_port_range), and are this process's until it ends: a locked file says so
/// to other tests (those in Python, too: tests/python/free_ports.py). Throws std::runtime_error
/// when there is none.
inline int free_port_pair() {
  static std::vector<FileHandle> held;
  const auto folder = "/tmp/troupe-test-ports-" + std::to_string(geteuid());
  ::mkdir(folder.c_str(), 0700);
  int first_outgoing = 32'768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_outgoing;
  for (int port = std::min(first_outgoing, 32'768) - 2; port > 1024; port -= 2) {
    FileHandle file(
        ::open((folder + "/" + std::to_string(port)).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (!is_free(port) || !is_free(port + 1)) continue;
    held.push_back(std::move(file));
    return port;
  }
  throw std::runtime_error("no two free ports below those of outgoing connections");
}

/// Returns an endpoint at such a port.
inline std::string endpoint_to_come_back_to() {
  return "tcp://127.0.0.1:" + std::to_string(free_port_pair());
}

}  // namespace troupe::testing
