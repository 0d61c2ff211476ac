#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "base/choice.h"
#include "transport/wire/job_field.h"
#include "transport/wire/kind.h"

namespace troupe {

/// Role of the peer that says hello. caller: a process that calls users' actors; node: a host's
/// agent; actor: of a model's stage.
enum class PeerRole : std::uint8_t { none, client, caller, node, actor, user_actor };
template <>
inline constexpr auto kNamesOf<PeerRole> =
    std::to_array<std::string_view>({"", "client", "caller", "node", "actor", "user-actor"});

}  // namespace troupe

namespace troupe::wire {

/// Peer → server, the first message of a link. The incarnation travels in the envelope.
struct Hello {
  static constexpr Kind kKind = Kind::hello;
  PeerRole role = PeerRole::none;
  std::string name;  // e.g. "actor 3"
  std::string host;
  std::uint32_t pid = 0;
  std::string software;  // e.g. "troupe 0.1.0"
  std::map<std::string, std::string> attributes;
  std::string secret =
      {};  // of the link that this one belongs to, as its Welcome said; "" = of none

  template <class Archive>
  void serialize(Archive& ar) {
    ar(role, name, host, pid, software, attributes, secret);
  }
};

/// Server → peer: the link stands. The server's incarnation travels in the envelope.
struct Welcome {
  static constexpr Kind kKind = Kind::welcome;
  std::uint64_t peer = 0;  // the id the peer puts into its envelopes from now on
  std::uint32_t heartbeat_interval_ms = 0;
  std::uint32_t heartbeat_timeout_ms = 0;
  std::string software;
  std::map<std::string, std::string> attributes;  // "journal": the id of the server's, if any
  std::string secret = {};  // random; another link of the same process shows by it that it is one

  template <class Archive>
  void serialize(Archive& ar) {
    ar(peer, heartbeat_interval_ms, heartbeat_timeout_ms, software, attributes, secret);
  }
};

/// Server → peer: no link, and why. On version skew the reason names both versions.
struct Refuse {
  static constexpr Kind kKind = Kind::refuse;
  std::string reason;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// Both ways, sent by the loop of the process itself. `progress` counts what its work loop has
/// done.
struct Heartbeat {
  static constexpr Kind kKind = Kind::heartbeat;
  std::uint64_t progress = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(progress);
  }
};

/// Reason for the end of a link.
enum class LinkEnd : std::uint8_t {
  closed = 0,    // by the side that wanted that, or because connection or protocol broke
  silent = 1,    // no sign of life
  gap = 2,       // messages never arrived
  stopped = 3,   // a cluster has stopped, or a drained host has left
  replaced = 4,  // another controller has taken the place of the one that welcomed the peer
};

constexpr bool is_valid(LinkEnd end) {
  return end <= LinkEnd::replaced;
}

/// Both ways: the sender ends the link.
struct Goodbye {
  static constexpr Kind kKind = Kind::goodbye;
  std::string reason;
  LinkEnd end = LinkEnd::closed;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason, end);
  }
};

/// Server → peer: what whoever runs the peer should know.
struct Notice {
  static constexpr Kind kKind = Kind::notice;
  std::string text;  // one line

  template <class Archive>
  void serialize(Archive& ar) {
    ar(text);
  }
};

/// Reason why something was not done.
enum class FailureCode : std::uint16_t {
  none = 0,
  timeout = 1,      // no answer before the deadline
  lost = 2,         // the peer went away
  refused = 3,      // the peer will not
  bad_request = 4,  // the request makes no sense; the text names the field
  not_found = 5,    // no such job, blob, model
  overloaded = 6,   // a bounded queue is full; later may do
  cancelled = 7,
  out_of_memory = 8,
  protocol = 9,           // the answer could not be read
  internal = 10,          // everything else
  died = 11,              // the actor asked for has ended for good; the text says how
  exception = 12,         // what was called threw; the text is the exception's
  version_mismatch = 13,  // the peer speaks another version of the protocol; the text names both
};

constexpr bool is_valid(FailureCode code) {
  return code <= FailureCode::version_mismatch;
}
const char* to_string(FailureCode code);

/// An error as a value, across processes. As a message (Kind::error) it is the answer to a request
/// that failed.
struct Failure {
  static constexpr Kind kKind = Kind::error;
  FailureCode code = FailureCode::none;
  std::string what;                 // one line: what, which and why
  JobField field = JobField::none;  // that is at fault alone, of a submission that was refused

  template <class Archive>
  void serialize(Archive& ar) {
    ar(code, what, field);
  }
  bool operator==(const Failure&) const = default;
};

/// Asks the other side's loop for a sign of life. Answered with Pong by the endpoint itself.
struct Ping {
  static constexpr Kind kKind = Kind::ping;
  std::string data;  // comes back as it is

  template <class Archive>
  void serialize(Archive& ar) {
    ar(data);
  }
};

struct Pong {
  static constexpr Kind kKind = Kind::pong;
  std::string data;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(data);
  }
};

}  // namespace troupe::wire
