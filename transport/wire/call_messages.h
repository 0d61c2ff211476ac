#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/kind.h"

/// Calls of users' actors and their results, between two processes without the controller.
namespace troupe::wire {

/// A part of a call's arguments that is held elsewhere and comes in at `at`.
struct HeldPart {
  std::uint32_t at = 0;  // in the arguments as they are in the call
  std::string endpoint;  // the holder's for blobs; "" = the caller holds it
  std::string ticket;
  std::string keys;
  std::uint64_t blob = 0;
  std::uint64_t bytes = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(at, endpoint, ticket, keys, blob, bytes);
  }
};

struct ActorCall {
  std::uint64_t id = 0;  // of the caller's, on this link
  std::string method;
  std::uint64_t types = 0;
  bool text = false;  // arguments are a JSON array, and so is the result to be
  std::uint32_t deadline_ms = 0;
  std::string arguments;
  std::vector<HeldPart> parts;  // ascending

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, method, types, text, deadline_ms, arguments, parts);
  }
};

/// Caller → host process, one way: what lay in the queue, in its order.
struct ActorCalls {
  static constexpr Kind kKind = Kind::actor_calls;
  std::vector<ActorCall> calls;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(calls);
  }
};

enum class CallEnd : std::uint8_t {
  value,        // `bytes` is the result
  held,         // the result is a blob here, until it is released
  exception,    // `bytes` is its text
  bad_request,  // no such method, or other types; `bytes` says which
  timeout,      // the deadline passed before the call began
  failed,       // an argument did not come
};
constexpr bool is_valid(CallEnd end) {
  return end <= CallEnd::failed;
}

struct CallResult {
  std::uint64_t id = 0;
  CallEnd end = CallEnd::value;
  std::string bytes;
  std::uint64_t blob = 0;
  std::uint64_t blob_bytes = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, end, bytes, blob, blob_bytes);
  }
};

/// Host process → caller, one way.
struct CallResults {
  static constexpr Kind kKind = Kind::call_results;
  std::vector<CallResult> results;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(results);
  }
};

/// Caller → host process, one way: results that nobody will ask for any more.
struct ReleaseValues {
  static constexpr Kind kKind = Kind::release_values;
  std::vector<std::uint64_t> blobs;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(blobs);
  }
};

}  // namespace troupe::wire
