#include "base/format.h"
#include "transport/control/descriptors.h"
#include "transport/control/server_impl.h"

#include "transport/control/zap.h"

// What peers send: hello, signs of life, requests, replies.
namespace troupe::control {

bool Server::Impl::receive_one() {
  zmq::message_t routing;
  zmq::message_t frame;
  if (!socket_.recv(routing, zmq::recv_flags::dontwait)) return false;
  if (!routing.more() || !socket_.recv(frame, zmq::recv_flags::dontwait)) return true;
  ++counters_.messages_received;
  counters_.bytes_received += frame.size();
  arriving_ = &frame;
  const std::string_view from = routing.to_string_view();
  if (frame.more()) {
    ++counters_.malformed;
    while (frame.more() && socket_.recv(frame, zmq::recv_flags::dontwait))
      counters_.bytes_received += frame.size();
    const Peer* peer = find(from);
    if (peer && peer->carrier == 0) lose(peer->info.id, "sent a message of several frames");
    return true;
  }
  // A connection chooses its routing id: whoever takes that of a carried link is none of ours.
  if (mux_place(from)) {
    ++counters_.strangers;
    return true;
  }
  handle(from, guarded_ ? user_id_of(frame) : "", {frame.data<std::byte>(), frame.size()});
  return true;
}

void Server::Impl::handle(std::string_view routing, std::string_view user_id,
                          std::span<const std::byte> frame) {
  Peer* peer = find(routing);
  if (peer && user_id != peer->user_id) {
    ++counters_.fenced;
    return;
  }
  const PeerId id = peer ? peer->info.id : 0;
  try {
    const wire::Header header = wire::decode_header(frame);
    const auto payload = wire::payload_of(frame);
    if (header.kind == wire::Kind::hello) return greet(routing, user_id, header, payload);
    if (!peer) {
      ++counters_.strangers;
      if (header.kind != wire::Kind::goodbye)
        send_stranger(routing, wire::Goodbye{"say hello first"});
    } else if (header.incarnation != peer->info.incarnation || header.sender != id) {
      ++counters_.fenced;
    } else {
      handle_from(*peer, header, payload);
    }
  } catch (const wire::WireError& error) {
    ++counters_.malformed;
    if (peer) {
      const bool ours = error.code() == wire::WireErrc::not_sendable;
      lose(id, std::string(ours ? "cannot be answered: " : "broke the protocol: ") + error.what());
    } else if (error.code() == wire::WireErrc::version_skew || mux_place(routing)) {
      // A relay keeps a place for who has said hello until it is answered.
      send_stranger(routing, wire::Refuse{error.what()});
    }
  }
}

void Server::Impl::handle_from(Peer& peer, const wire::Header& header,
                               std::span<const std::byte> payload) {
  const PeerId id = peer.info.id;
  peer.vitals.heard = Clock::now();
  // ZeroMQ may have connected anew beneath the link.
  if (peer.carrier == 0 &&
      (header.kind == wire::Kind::heartbeat || arriving_over() != peer.at.descriptor))
    is_here(peer);
  std::uint64_t missing = 0;
  switch (peer.link.arrive(header.sequence, missing)) {
    case Link::Arrival::duplicate:
      ++counters_.duplicates;
      return;
    case Link::Arrival::gap:
      counters_.gaps += missing;
      if (on_gap) on_gap(id, missing);
      if (closed_ || !peers.contains(id)) return;
      break;
    case Link::Arrival::next:
      break;
  }
  switch (header.kind) {
    case wire::Kind::heartbeat: {
      const auto beat = wire::decode<wire::Heartbeat>(payload);
      if (beat.progress != peer.vitals.progress) {
        peer.vitals.progress = beat.progress;
        peer.vitals.progress_changed = peer.vitals.heard;
      }
      return;
    }
    case wire::Kind::mux_frames:
      if (peer.carrier == 0 && peer.info.hello.role == PeerRole::node) return unpack(peer, payload);
      break;
    case wire::Kind::goodbye: {
      const auto goodbye = wire::decode<wire::Goodbye>(payload);
      return lose(id, Loss{goodbye.end, "said goodbye: " + goodbye.reason});
    }
    case wire::Kind::ping:
      if (header.is_request()) {
        wire::Header answer_head;
        answer_head.flags = wire::kFlagReply;
        answer_head.correlation = header.correlation;
        send_frame(id, wire::encode_frame(answer_head,
                                          wire::Pong{wire::decode<wire::Ping>(payload).data}));
        return;
      }
      break;
    default:
      break;
  }
  if (header.is_reply()) return answer(id, header, payload);
  if (header.is_request() && refused(peer, header, payload.size())) return;
  if (on_message) on_message(id, header, payload);
}

void Server::Impl::unpack(Peer& carrier, std::span<const std::byte> payload) {
  const PeerId id = carrier.info.id;
  const std::string user_id = carrier.user_id;
  if (!carrier.carriage) carrier.carriage = std::make_unique<Carriage>();
  auto message = wire::decode<wire::MuxFrames>(payload);
  for (auto& entry : message.frames) {
    const auto routing = mux_routing({id, entry.slot});
    const auto frame = carrier.carriage->in.take(std::move(entry));
    if (!frame) continue;
    if (!frame->empty()) {
      handle(routing, user_id, wire::as_bytes(*frame));
    } else if (const Peer* gone = find(routing)) {
      lose(gone->info.id, "disconnected");
    }
    if (closed_ || !peers.contains(id)) return;
  }
}

int Server::Impl::arriving_over() const {
  return zmq_msg_get(arriving_->handle(), ZMQ_SRCFD);
}

void Server::Impl::is_here(Peer& peer) {
  // The same number may be that of a new connection.
  if (const auto link = AcceptLimiter::of_process().greeted(arriving_over())) peer.at = *link;
}

bool Server::Impl::refused(Peer& peer, const wire::Header& header, std::size_t bytes) {
  if (peer.requests.has(header.correlation))
    throw wire::WireError(
        wire::WireErrc::bad_value,
        fmt::format("[request] number {} comes again before it was answered", header.correlation));
  const auto& own = peer.requests.own();
  const bool room = own.room(bytes, options.open_requests);
  if (room && open_.room(bytes, options.open_requests_of_all)) {
    peer.requests.take(header.correlation, bytes, open_);
    return false;
  }
  const auto& full = room ? open_ : own;
  wire::Header answer_head;
  answer_head.flags = wire::kFlagReply;
  answer_head.correlation = header.correlation;
  send_frame(peer.info.id,
             wire::encode_frame(
                 answer_head,
                 wire::Failure{
                     wire::FailureCode::overloaded,
                     fmt::format(
                         "[request] {}{}{} bytes are not answered yet: try again later", full.count,
                         room ? " requests of all peers with " : " requests of this peer with ",
                         full.bytes)}));
  return true;
}

bool Server::Impl::reaches(PeerId id) {
  return send_frame(
      id, wire::encode_frame({}, wire::Heartbeat{progress_.load(std::memory_order_relaxed)}));
}

void Server::Impl::greet(std::string_view routing, std::string_view user_id,
                         const wire::Header& header, std::span<const std::byte> payload) {
  Peer* known = find(routing);
  const bool fresh = !known || known->info.incarnation != header.incarnation;
  if (!fresh) {
    // It asks again because the welcome was lost or is late.
    ++counters_.duplicates;
  } else {
    if (known) lose(known->info.id, "replaced by a new incarnation");
    if (header.incarnation == 0)
      return send_stranger(routing, wire::Refuse{"hello without incarnation"});
    const auto place = mux_place(routing);
    PeerInfo info{last_id_ + 1, header.incarnation, wire::decode<wire::Hello>(payload),
                  random_secret(), guarded_ ? user_of(user_id) : ClientUser{}};
    if (const auto holder = by_incarnation.find(header.incarnation);
        options.one_link_per_process && holder != by_incarnation.end()) {
      const PeerId there = holder->second;
      if (reaches(there)) {
        if (on_rival) on_rival(there, info);
        return send_stranger(routing, wire::Refuse{"this process has a link already"});
      }
    }
    if (peers.size() >= options.max_peers) {
      return send_stranger(routing, wire::Refuse{fmt::format("full: {} peers", peers.size())});
    }
    const auto role = info.hello.role;
    if (place && role != PeerRole::actor)
      return send_stranger(routing, wire::Refuse{"a host's link carries its actors' only"});
    if ((role == PeerRole::client || role == PeerRole::caller) && short_of_descriptors()) {
      return send_stranger(routing, wire::Refuse{fmt::format("full: {} peers; {}", peers.size(),
                                                             no_descriptors_text())});
    }
    if (on_connect) {
      if (const auto reason = on_connect(info))
        return send_stranger(routing, wire::Refuse{*reason});
      if (closed_) return;
    }
    const auto carrier = peers.find(place ? place->carrier : 0);
    if (place && carrier == peers.end()) return;
    ++last_id_;
    auto peer = std::make_unique<Peer>(std::move(info), std::string(routing), socket_options_);
    known = peer.get();
    known->user_id = user_id;
    if (place) {
      known->carrier = place->carrier;
      carrier->second->carriage->links.insert(last_id_);
    }
    by_routing_.emplace(peer->routing, last_id_);
    by_incarnation[header.incarnation] = last_id_;
    peers.emplace(last_id_, std::move(peer));
    known->link.begin_incoming(header.sequence);
  }
  const PeerId id = known->info.id;
  if (known->carrier == 0) is_here(*known);
  wire::Welcome welcome;
  welcome.peer = id;
  welcome.heartbeat_interval_ms = static_cast<std::uint32_t>(options.heartbeat_interval.count());
  welcome.heartbeat_timeout_ms = static_cast<std::uint32_t>(options.heartbeat_timeout.count());
  welcome.software = options.software;
  welcome.attributes = options.attributes;
  welcome.secret = known->info.secret;
  if (send_frame(id, wire::encode_frame({}, welcome)) && fresh && on_ready) on_ready(id);
}

}  // namespace troupe::control
