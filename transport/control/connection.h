#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "transport/control/keys.h"
#include "transport/control/peer.h"
#include "transport/control/types.h"

namespace troupe::control {

struct ConnectionOptions {
  std::string endpoint;           // of a Server
  wire::Hello hello;              // who this is; host and pid are filled in where empty
  std::uint64_t incarnation = 0;  // 0 = random
  Milliseconds welcome_deadline{5000};
  std::optional<Clock::time_point> waits_since;  // of an earlier look, for the text of a timeout
  std::optional<ClientKeys> keys;                // for tcp; ipc needs none
  SocketOptions socket;
};

/// The connecting end of the control plane: one server. Speaks first.
///
/// Not thread-safe: construct it and call it on the thread that runs the io_context (others post),
/// except `set_progress`. Handlers run there, one at a time; they may call anything here.
/// Heartbeats leave from that same loop at the rhythm the server asks for.
class Connection {
 public:
  /// Throws std::runtime_error when the endpoint is no endpoint. Nothing is sent before `start`.
  Connection(boost::asio::io_context& io, ConnectionOptions options);
  /// Ends at once without goodbye; handlers of open requests are destroyed without being called.
  /// `close` first to have them called.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Says hello. Exactly one of the two is called, once: `on_welcome`, or `on_failed` with code
  /// refused (the server's reason; on version skew it names both versions) or timeout ("no
  /// controller at ENDPOINT").
  void start(std::function<void(const wire::Welcome&)> on_welcome,
             std::function<void(const wire::Failure&)> on_failed);

  /// A message that is no answer. If header.is_request(), call `reply` sooner or later. A WireError
  /// thrown by the handler (from wire::decode) ends the link.
  void on_message(std::function<void(const wire::Header&, std::span<const std::byte>)> handler);
  /// The link ended after a welcome: goodbye, silence, another server in its place, broken
  /// protocol. Open requests have failed before. The object is spent then; make a new one to
  /// connect again. Not called after `close`.
  void on_lost(std::function<void(const Loss&)> handler);
  void on_gap(std::function<void(std::uint64_t missing)> handler);

  /// Sends one way. False while there is no link. Throws WireError not_sendable.
  template <class M>
  bool send(const M& message) {
    return send_frame(wire::encode_frame({}, message));
  }

  /// Same as Server::request.
  template <class M>
  void request(const M& message, Milliseconds deadline, ReplyHandler handler) {
    request_frame(wire::encode_frame({}, message), deadline, std::move(handler));
  }

  template <class M>
  bool reply(const wire::Header& request, const M& message) {
    wire::Header header;
    header.flags = wire::kFlagReply;
    header.correlation = request.correlation;
    return send_frame(wire::encode_frame(header, message));
  }

  /// Says goodbye; open requests fail inside this call; the socket closes. Nothing is called
  /// afterwards.
  void close(const std::string& reason = "closed", wire::LinkEnd end = wire::LinkEnd::closed);

  bool connected() const;
  PeerId id() const;  // given by the server; 0 before the welcome
  std::uint64_t incarnation() const;
  /// Returns the secret for wire::Hello::secret of further links of this process; "" before the
  /// welcome.
  const std::string& secret() const;
  const std::string& endpoint() const;
  const Counters& counters() const;
  /// Sets the count of what the work loop has done so far, which goes into the heartbeats. May be
  /// called from any thread.
  void set_progress(std::uint64_t progress);

  /// Same as `send`, for a message that is a frame already.
  bool send_frame(std::string frame);

 private:
  class Impl;
  void request_frame(std::string frame, Milliseconds deadline, ReplyHandler handler);

  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::control
