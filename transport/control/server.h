#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/control/keys.h"
#include "transport/control/peer.h"
#include "transport/control/types.h"

namespace troupe::control {

/// Requests of one peer that have not been answered, and how much of them a server keeps: whatever
/// its rooms hold for who waits is bounded here.
class OpenRequests {
 public:
  struct Bounds {
    std::size_t most = 1024;
    std::size_t most_bytes = 16u << 20;
  };
  struct Sum {
    std::size_t count = 0;
    std::size_t bytes = 0;

    bool room(std::size_t more, const Bounds& bounds) const {
      return count < bounds.most && bytes + more <= bounds.most_bytes;
    }
  };

  /// Returns whether a request of that number is open.
  bool has(std::uint64_t correlation) const { return open_.contains(correlation); }
  /// `all`: of all peers together, this one's included.
  void take(std::uint64_t correlation, std::size_t bytes, Sum& all) {
    open_.emplace(correlation, bytes);
    for (Sum* sum : {&own_, &all}) {
      ++sum->count;
      sum->bytes += bytes;
    }
  }
  void answered(std::uint64_t correlation, Sum& all) {
    const auto found = open_.extract(correlation);
    if (found.empty()) return;
    for (Sum* sum : {&own_, &all}) {
      --sum->count;
      sum->bytes -= found.mapped();
    }
  }
  /// Forgets the peer's requests, when nobody is there to be answered.
  void forget(Sum& all) const {
    all.count -= own_.count;
    all.bytes -= own_.bytes;
  }
  const Sum& own() const { return own_; }

 private:
  std::unordered_map<std::uint64_t, std::size_t> open_;
  Sum own_;
};

class Guard;

struct ServerOptions {
  std::string endpoint;  // ipc:///folder/name or tcp://127.0.0.1:PORT, port 0 = any
  std::uint64_t id = 1;  // sender id in own envelopes; peers are numbered from the next one on
  std::uint64_t incarnation = 0;                  // 0 = random
  std::string software = "troupe";                // told to peers
  std::map<std::string, std::string> attributes;  // told to peers
  Milliseconds heartbeat_interval{250};
  Milliseconds heartbeat_timeout{5000};  // silence after which a peer is lost
  std::size_t max_peers = 4096;
  /// A process that has a link gets no second one: another that says it is this process is refused.
  bool one_link_per_process = true;
  OpenRequests::Bounds open_requests = {};  // of one peer; more are refused
  OpenRequests::Bounds open_requests_of_all{.most = 8192, .most_bytes = 256u << 20};
  std::size_t max_queued_bytes_of_all = 512u << 20;  // more loses the peer that reads least
  bool insecure = false;                             // allows tcp beyond loopback without keys
  /// Asks for keys where the endpoint is tcp; `socket.context` must be the guard's.
  std::shared_ptr<Guard> guard;
  SocketOptions socket;
};

/// The binding end of the control plane: many peers, one socket, on one io_context.
///
/// Not thread-safe: construct it and call it on the thread that runs the io_context (others post).
/// Handlers run there, one at a time; they may call anything here, `close` included. Set handlers
/// before the loop runs. Peers are lost when they fall silent, say goodbye, break the protocol,
/// vanish from the socket, or do not read. Connections of whom nobody knows yet are bounded by the
/// AcceptLimiter; a client whose link would leave no descriptor is refused; a request beyond what a
/// peer may have open is answered with a failure (overloaded) and not handed on.
class Server {
 public:
  /// Binds. Throws std::runtime_error, one line naming endpoint and cause: in use, folder open to
  /// others or not writable, address not of this machine, beyond loopback without `insecure`.
  Server(boost::asio::io_context& io, ServerOptions options);
  /// Ends at once; handlers of open requests are destroyed without being called. `close` first to
  /// have them called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the endpoint with the real port where 0 was asked for.
  std::string endpoint() const;
  std::uint64_t incarnation() const;

  /// Sets the handler for a hello. Return a reason to refuse. The peer can be sent to from
  /// `on_ready` on.
  void on_connect(std::function<std::optional<std::string>(const PeerInfo&)> handler);
  /// Sets the handler for a hello of a process that has a link already; the newcomer is refused.
  void on_rival(std::function<void(PeerId holder, const PeerInfo& rival)> handler);
  /// Sets the handler for a peer that has been welcomed; messages sent now come after the welcome.
  void on_ready(std::function<void(PeerId)> handler);
  /// Sets the handler for a message that is no answer. If header.is_request(), call `reply` sooner
  /// or later. A WireError thrown by the handler (from wire::decode) loses the peer.
  void on_message(
      std::function<void(PeerId, const wire::Header&, std::span<const std::byte>)> handler);
  /// Sets the handler for a peer that is gone for good; its open requests have failed before. Not
  /// called after `drop`.
  void on_lost(std::function<void(PeerId, const Loss&)> handler);
  /// Sets the handler for `missing` messages of the peer that never came; the link went on with the
  /// next one.
  void on_gap(std::function<void(PeerId, std::uint64_t missing)> handler);

  /// Sends one way. False if there is no such peer. Throws WireError not_sendable.
  template <class M>
  bool send(PeerId peer, const M& message) {
    return send_frame(peer, wire::encode_frame({}, message));
  }

  /// Asks. The handler is called exactly once, never from inside this call: with the answer, or
  /// with a failure at the deadline or when the peer is lost. Throws WireError not_sendable (then
  /// the handler is not called).
  template <class M>
  void request(PeerId peer, const M& message, Milliseconds deadline, ReplyHandler handler) {
    request_frame(peer, wire::encode_frame({}, message), deadline, std::move(handler));
  }

  /// Answers a request. False if the peer is gone.
  template <class M>
  bool reply(PeerId peer, const wire::Header& request, const M& message) {
    wire::Header header;
    header.flags = wire::kFlagReply;
    header.correlation = request.correlation;
    return send_frame(peer, wire::encode_frame(header, message));
  }

  /// Says goodbye to a peer and forgets it. Its open requests fail.
  void drop(PeerId peer, const std::string& reason = "dropped",
            wire::LinkEnd end = wire::LinkEnd::closed);
  /// Says goodbye to all; open requests fail inside this call; the socket closes. Nothing is called
  /// afterwards.
  void close();

  std::size_t peers() const;
  std::vector<PeerId> peer_ids() const;
  std::optional<PeerInfo> info(PeerId peer) const;
  /// Returns the client whose key the peer has shown; if there is no such peer, one with the fewest
  /// rights.
  ClientUser user(PeerId peer) const;
  std::optional<PeerVitals> vitals(PeerId peer) const;
  /// Returns the peer of that incarnation if this is its link's secret.
  std::optional<PeerId> holder_of(std::uint64_t incarnation, std::string_view secret) const;
  /// Returns the peer of that incarnation.
  std::optional<PeerId> peer_of(std::uint64_t incarnation) const;
  const Counters& counters() const;
  /// Sets the progress that goes into the heartbeats to peers. May be called from any thread.
  void set_progress(std::uint64_t progress);

  /// Same as `send` and `request`, for a message that is a frame already.
  bool send_frame(PeerId peer, std::string frame);
  void request_frame(PeerId peer, std::string frame, Milliseconds deadline, ReplyHandler handler);

 private:
  class Impl;

  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::control
