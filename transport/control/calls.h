#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/control/types.h"

namespace troupe::control {

/// Requests under way: who was asked what, until when, and who waits for the answer. Reads no clock
/// and calls nobody.
class Calls {
 public:
  struct Call {
    PeerId peer = 0;
    wire::Kind kind{};
    Milliseconds allowed{};
    Clock::time_point deadline;
    ReplyHandler handler;
  };

  /// Returns the correlation id of the call, never 0 and never used before.
  std::uint64_t add(Call call);
  /// Returns the call that an answer from `peer` belongs to; nothing if it is unknown, over, or of
  /// another peer.
  std::optional<Call> take(std::uint64_t correlation, PeerId peer);
  std::vector<Call> take_expired(Clock::time_point now);
  std::vector<Call> take_peer(PeerId peer);
  std::vector<Call> take_all();
  /// Returns a time not later than the earliest deadline of all calls; it may be the deadline of a
  /// call that is over.
  std::optional<Clock::time_point> next_deadline() const;
  std::size_t size() const { return calls_.size(); }

 private:
  struct Due {
    Clock::time_point deadline;
    std::uint64_t correlation;
    bool operator>(const Due& other) const { return deadline > other.deadline; }
  };
  void tidy();

  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Call> calls_;
  std::vector<Due> due_;  // a heap, earliest first; entries of ended calls stay until they surface
                          // or tidy() runs
};

}  // namespace troupe::control
