#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::testing {

/// Sockets on which a process listens.
struct ListeningSockets {
  struct Tcp {
    std::string address;  // "127.0.0.1"; of IPv6 as /proc/net/tcp6 has it
    std::uint16_t port = 0;
  };
  std::vector<Tcp> tcp;
  std::vector<std::string> names;  // abstract unix sockets
};

ListeningSockets listening_sockets_of(pid_t pid);

}  // namespace troupe::testing
