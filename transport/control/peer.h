#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/control/keys.h"
#include "transport/wire/session.h"

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

/// Reason for the end of a link.
struct Loss {
  wire::LinkEnd end = wire::LinkEnd::closed;
  std::string why;  // in words

  /// True if either side gave the link up although nobody closed it: for silence, or for messages
  /// that never came. The peer may live and be on its way back.
  bool given_up() const { return end == wire::LinkEnd::silent || end == wire::LinkEnd::gap; }
};

/// Beginning of texts about silent peers.
inline constexpr std::string_view kSilent = "no sign of life";

/// Returns the loss of a link whose `missing` messages never came.
inline Loss gap(std::uint64_t missing) {
  return {wire::LinkEnd::gap, std::to_string(missing) + " of its messages never arrived"};
}

/// Sequence numbers of one link, both directions, from 1.
class SequenceNumbers {
 public:
  enum class Arrival { next, duplicate, gap };

  std::uint64_t take_outgoing() { return next_out_++; }
  /// The peer's first message has `sequence`; the next one is awaited.
  void begin_incoming(std::uint64_t sequence) { next_in_ = sequence + 1; }

  /// Judges a message by its number. After a gap the link goes on behind it; `missing` is its
  /// width.
  Arrival arrive(std::uint64_t sequence, std::uint64_t& missing) {
    missing = 0;
    if (sequence < next_in_) return Arrival::duplicate;
    missing = sequence - next_in_;
    next_in_ = sequence + 1;
    return missing ? Arrival::gap : Arrival::next;
  }

 private:
  std::uint64_t next_out_ = 1;
  std::uint64_t next_in_ = 1;
};

}  // namespace troupe::control
