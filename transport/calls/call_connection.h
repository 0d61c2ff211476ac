#pragma once
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "transport/calls/held_value.h"
#include "transport/control/connection.h"
#include "transport/wire/call_messages.h"
#include "transport/wire/user_messages.h"
#include "troupe/actor.h"

namespace troupe::calls {

/// The calls of this process to one actor, in their order. Lives on the exchange's thread.
///
/// A call waits here until the actor's address is known, the link stands, its futures are there and
/// the window has room; then it is sent, once. When the actor ends, what was sent fails with the
/// cause; what was not goes to its next incarnation, if there will be one.
class CallConnection : public std::enable_shared_from_this<CallConnection> {
 public:
  CallConnection(Exchange& exchange, std::uint64_t actor);
  ~CallConnection();

  void add(detail::CallRequest request, std::shared_ptr<detail::CallState> state);
  /// Sends what can be sent.
  void pump();
  void expire(std::uint64_t call);
  /// Returns whether the call has not been answered yet.
  bool awaits(std::uint64_t call) const;
  void died(const wire::ActorDied& death);
  void release(std::uint64_t incarnation, control::BlobId blob);
  /// Makes everything fail with this error; the link ends.
  void close(const Error& why);

 private:
  struct Waiting {
    std::uint64_t id = 0;
    detail::CallRequest request;
    std::shared_ptr<detail::CallState> state;
    std::chrono::steady_clock::time_point until;
    bool watched = false;  // its futures tell when they are done
  };
  struct Sent {
    std::shared_ptr<detail::CallState> state;
    std::string method;
    const detail::MethodRow* row = nullptr;
    std::size_t bytes = 0;
    std::vector<control::BlobId> own;                            // held here for the actor
    std::vector<std::shared_ptr<detail::RemoteValue>> borrowed;  // held elsewhere for it
  };

  void resolve();
  void connect();
  bool ready(Waiting& waiting);
  /// Returns the call; nothing when an argument's future has failed, and then the call has failed,
  /// too.
  std::optional<wire::ActorCall> make_call(Waiting& waiting, Sent& sent);
  void add_segment(std::string segment, wire::ActorCall& call, Sent& sent);
  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  void settle(wire::CallResult& result);
  void forget(Sent& sent);
  void fail_sent(const Error& why);
  void fail_waiting(const Error& why);
  void hang_up();
  std::string name() const;

  Exchange& exchange_;
  std::uint64_t actor_;
  std::optional<wire::ActorAddress> address_;
  std::unique_ptr<control::Connection> connection_;
  bool up_ = false;
  bool resolving_ = false;
  bool closed_ = false;
  std::uint64_t last_call_ = 0;
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::unordered_map<std::uint64_t, Sent> sent_;
  std::size_t sent_bytes_ = 0;
  std::vector<control::BlobId> to_release_;
  std::string name_;
};

}  // namespace troupe::calls
