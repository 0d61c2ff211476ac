#pragma once

#include <set>
#include <string_view>
#include <unordered_map>

#include "transport/control/accept_limiter.h"
#include "transport/control/core.h"
#include "transport/control/mux.h"
#include "transport/control/peer.h"
#include "transport/control/server.h"

namespace troupe::control {

/// Carrier of a link, and the link's slot there.
struct MuxPlace {
  PeerId carrier = 0;
  std::uint32_t slot = 0;
};
/// Returns the place as a routing id that no connection has.
std::string mux_routing(const MuxPlace& place);
std::optional<MuxPlace> mux_place(std::string_view routing);

class Server::Impl final : public Core {
 public:
  Impl(boost::asio::io_context& io, ServerOptions options);
  void open();

  bool send_frame(PeerId id, std::string frame) override;
  void drop(PeerId id, const Loss& how);
  void close();
  bool reaches(PeerId id);

  std::function<std::optional<std::string>(const PeerInfo&)> on_connect;
  std::function<void(PeerId, const PeerInfo&)> on_rival;
  std::function<void(PeerId)> on_ready;
  std::function<void(PeerId, const wire::Header&, std::span<const std::byte>)> on_message;
  std::function<void(PeerId, const Loss&)> on_lost;
  std::function<void(PeerId, std::uint64_t)> on_gap;

  /// Other links that a link carries (transport/wire/mux_frames.h).
  struct Carriage {
    MuxReader in;
    MuxWriter out;
    std::set<PeerId> links;
  };
  struct Peer {
    Peer(PeerInfo info, std::string routing, const SocketOptions& options);
    PeerInfo info;
    std::string routing;
    SequenceNumbers link;
    Outbox outbox;
    PeerVitals vitals;
    OpenRequests requests;
    AcceptedLink at;       // the peer's connection, as of its last sign of life
    std::string user_id;   // user that a guard let the peer in as
    bool hung_up = false;  // what it sent before is still to be read
    PeerId carrier = 0;    // peer whose link carries this one; 0 = it has a connection of its own
    std::unique_ptr<Carriage> carriage;  // null = it carries none
  };
  struct RoutingHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };

  ServerOptions options;
  std::string bound;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers;
  std::unordered_map<std::uint64_t, PeerId> by_incarnation;  // where each has one link

 private:
  bool receive_one() override;
  void flush() override;
  void tick(bool stalled) override;
  std::string name_of(PeerId id) const override;

  void handle(std::string_view routing, std::string_view user_id, std::span<const std::byte> frame);
  void handle_from(Peer& peer, const wire::Header& header, std::span<const std::byte> payload);
  void greet(std::string_view routing, std::string_view user_id, const wire::Header& header,
             std::span<const std::byte> payload);
  Peer* find(std::string_view routing);
  /// Takes apart what a link carries.
  void unpack(Peer& carrier, std::span<const std::byte> payload);
  /// Puts a frame with those that its carrier takes along at the end of the turn. Returns as
  /// `transmit`.
  int carry(PeerId carrier, std::uint32_t slot, const zmq::message_t& frame);
  void send_mux(PeerId carrier);
  /// Loses the links that a lost link carried.
  void lose_mux(const std::set<PeerId>& links, const std::string& why);
  /// Returns the descriptor of the connection over which the message at hand has arrived.
  int arriving_over() const;
  /// Tells the accept limiter that the peer is known by the connection over which the message at
  /// hand came.
  void is_here(Peer& peer);
  /// Answers a request beyond what the peer may have open, and returns true for it.
  bool refused(Peer& peer, const wire::Header& header, std::size_t bytes);
  /// Closes the request that an outgoing answer belongs to.
  void settle(Peer& peer, std::string_view frame);
  /// Loses peers that read least while all together are owed too much.
  void bound_queues();

  /// Returns 1 if the frame was sent, 0 if the pipe is full, -1 if there is nobody.
  int transmit(std::string_view routing, zmq::message_t& frame);
  template <class M>
  void send_stranger(std::string_view routing, const M& message, std::uint64_t sequence = 1);
  bool flush_peer(Peer& peer);
  /// Marks a peer whose socket is closed. It is lost once all that had arrived has been read: a
  /// goodbye says more.
  void hang_up(PeerId id);
  /// Takes a lost peer out of the tables at once; the handlers hear of it in a later turn.
  void lose(PeerId id, const std::string& why) { lose(id, Loss{.why = why}); }
  void lose(PeerId id, const Loss& loss);
  std::unique_ptr<Peer> forget(PeerId id);

  WatchedEndpoint endpoint_;
  const zmq::message_t* arriving_ = nullptr;  // while it is handled
  OpenRequests::Sum open_;                    // of all peers
  std::size_t queued_bytes_ = 0;
  std::vector<PeerId> laden_;  // carriers that have something to take along
  std::unordered_map<std::string, PeerId, RoutingHash, std::equal_to<>> by_routing_;
  bool guarded_ = false;
  PeerId last_id_ = 0;
};

template <class M>
void Server::Impl::send_stranger(std::string_view routing, const M& message,
                                 std::uint64_t sequence) {
  std::string frame = wire::encode_frame({}, message);
  wire::FrameHead(frame).set_sender(options.id, options.incarnation, sequence);
  zmq::message_t out = to_message(std::move(frame));
  transmit(routing, out);
  reactor_.touch();
}

}  // namespace troupe::control
