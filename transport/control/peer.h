#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "transport/control/keys.h"
#include "transport/wire/session.h"

// What a server knows of its peers, for those who keep tables of them and send nothing.

namespace troupe::control {

using Clock = std::chrono::steady_clock;

/// Number that a server gives to each peer it welcomes; never given twice by the same server.
using PeerId = std::uint64_t;

struct PeerInfo {
  PeerId id = 0;
  std::uint64_t incarnation = 0;
  wire::Hello hello;
  std::string secret = {};  // secret that the peer's welcome gives it, and nobody else
  ClientUser user = {};     // the client whose key the peer has shown
};

/// Signs of life of a peer. `progress` is what its work loop counted, not what its sockets do.
struct PeerVitals {
  Clock::time_point heard;  // last message of any kind
  std::uint64_t progress = 0;
  Clock::time_point progress_changed;  // when `progress` was last seen to move
};

}  // namespace troupe::control
