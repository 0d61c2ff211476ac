#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/control/peer.h"
#include "transport/wire/codec.h"
#include "transport/wire/session.h"

namespace zmq {
class context_t;
}

namespace troupe::control {

using Milliseconds = std::chrono::milliseconds;

/// A fresh random number that names one life of a process. Never 0.
std::uint64_t random_incarnation();

/// 128 fresh random bits, as text.
std::string random_secret();

/// Returns the name of this machine; "unknown" when it has none.
std::string host_name();

/// Outcome of a request: an answer, or a failure. Valid only inside the handler that gets it.
class Reply {
 public:
  Reply(const wire::Header& header, std::span<const std::byte> payload)
      : header_(header), payload_(payload) {}
  explicit Reply(wire::Failure failure) : failure_(std::move(failure)) {}

  bool ok() const { return !failure_; }
  explicit operator bool() const { return ok(); }
  /// Returns the failure; only if not ok(). It is the other side's (with its own code), or this
  /// side's: timeout, lost.
  const wire::Failure& failure() const { return *failure_; }
  const wire::Header& header() const { return header_; }
  wire::Kind kind() const { return header_.kind; }
  std::span<const std::byte> payload() const { return payload_; }

  /// The answer as an M. Throws WireError wrong_kind when it is something else; inside a reply
  /// handler that exception costs the peer its link, as any malformed message does.
  template <class M>
  M as() const {
    if (!ok() || header_.kind != M::kKind) throw_wrong_kind(M::kKind);
    return wire::decode<M>(payload_);
  }

 private:
  [[noreturn]] void throw_wrong_kind(wire::Kind wanted) const;

  wire::Header header_;
  std::span<const std::byte> payload_;
  std::optional<wire::Failure> failure_;
};

using ReplyHandler = std::function<void(const Reply&)>;

/// Traffic over an endpoint since it was made.
struct Counters {
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t duplicates = 0;  // dropped by sequence number
  std::uint64_t gaps = 0;        // sequence numbers that never came
  std::uint64_t fenced = 0;      // of a dead incarnation
  std::uint64_t malformed = 0;   // not decodable
  std::uint64_t strangers = 0;   // from somebody who never said hello
};

/// Bounds and habits of a socket; the defaults suit the control plane.
struct SocketOptions {
  int high_water_mark = 1000;  // messages in ZeroMQ per peer and direction
  std::size_t max_queued_messages =
      10'000;  // waiting here for a full pipe, per peer; more loses the peer
  std::size_t max_queued_bytes = 64u << 20;
  Milliseconds linger{200};  // how long closing may take to send what is left
  /// Length of busy waiting. After a wait shorter than this the next wait looks again and again for
  /// as long before it sleeps, and gives its core to whoever wants it between two looks; 0 = never.
  std::chrono::microseconds patience{150};
  std::shared_ptr<zmq::context_t>
      context;  // shared by several endpoints of a process; null = an own one
};

/// A context for SocketOptions::context: one I/O thread for all endpoints of a process. Throws
/// std::runtime_error where no more threads can be started: ZeroMQ itself would end the process.
std::shared_ptr<zmq::context_t> make_context();

}  // namespace troupe::control
