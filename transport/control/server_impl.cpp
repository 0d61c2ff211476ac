#include "transport/control/server_impl.h"

#include <algorithm>
#include <stdexcept>

#include "transport/control/endpoint.h"
#include "transport/control/zap.h"
#include "transport/wire/little_endian.h"

namespace troupe::control {

Server::Impl::Peer::Peer(PeerInfo info_, std::string routing_, const SocketOptions& options)
    : info(std::move(info_)),
      routing(std::move(routing_)),
      outbox(options.max_queued_messages, options.max_queued_bytes) {
  vitals.heard = vitals.progress_changed = Clock::now();
}

Server::Impl::Impl(boost::asio::io_context& io, ServerOptions options_)
    : Core(io, options_.socket, zmq::socket_type::router),
      options(std::move(options_)),
      last_id_(options.id) {
  if (options.incarnation == 0) options.incarnation = random_incarnation();
  socket_.set(zmq::sockopt::router_mandatory, true);
  // A peer that reconnects goes on under its id at once; who that is, its incarnation shows.
  socket_.set(zmq::sockopt::router_handover, true);
  const bool keys = options.guard && !parse_endpoint(options.endpoint).ipc;
  if (keys) {
    if (options.guard->context() != context_)
      throw std::logic_error("[control] the guard of keys belongs to another context");
    options.guard->protect(socket_);
  }
  bound = bind_endpoint(socket_, options.endpoint, keys || options.insecure);
}

void Server::Impl::open() {
  start_reactor();
  start_ticking(options.heartbeat_interval, options.heartbeat_timeout);
}

std::string Server::Impl::name_of(PeerId id) const {
  const auto found = peers.find(id);
  if (found == peers.end()) return "peer " + std::to_string(id);
  const wire::Hello& hello = found->second->info.hello;
  return (hello.name.empty() ? hello.role : hello.name) + " (peer " + std::to_string(id) + ")";
}

Server::Impl::Peer* Server::Impl::find(std::string_view routing) {
  const auto found = by_routing_.find(routing);
  return found == by_routing_.end() ? nullptr : peers.at(found->second).get();
}

bool Server::Impl::receive_one() {
  zmq::message_t routing;
  zmq::message_t frame;
  if (!socket_.recv(routing, zmq::recv_flags::dontwait)) return false;
  if (!routing.more() || !socket_.recv(frame, zmq::recv_flags::dontwait)) return true;
  ++counters_.messages_received;
  counters_.bytes_received += frame.size();
  const std::string_view from = routing.to_string_view();
  if (frame.more()) {
    ++counters_.malformed;
    while (frame.more() && socket_.recv(frame, zmq::recv_flags::dontwait))
      counters_.bytes_received += frame.size();
    if (const Peer* peer = find(from)) lose(peer->info.id, "sent a message of several frames");
    return true;
  }
  handle(from, {frame.data<std::byte>(), frame.size()});
  return true;
}

void Server::Impl::handle(std::string_view routing, std::span<const std::byte> frame) {
  Peer* peer = find(routing);
  const PeerId id = peer ? peer->info.id : 0;
  try {
    const wire::Header header = wire::decode_header(frame);
    const auto payload = wire::payload_of(frame);
    if (header.kind == wire::Kind::hello) return greet(routing, header, payload);
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
    } else if (error.code() == wire::WireErrc::version_skew) {
      send_stranger(routing, wire::Refuse{error.what()});
    }
  }
}

void Server::Impl::handle_from(Peer& peer, const wire::Header& header,
                               std::span<const std::byte> payload) {
  const PeerId id = peer.info.id;
  peer.vitals.heard = Clock::now();
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
    case wire::Kind::goodbye:
      return lose(id, "said goodbye: " + wire::decode<wire::Goodbye>(payload).reason);
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
  if (on_message) on_message(id, header, payload);
}

void Server::Impl::greet(std::string_view routing, const wire::Header& header,
                         std::span<const std::byte> payload) {
  Peer* known = find(routing);
  const bool fresh = !known || known->info.incarnation != header.incarnation;
  if (!fresh) {
    // It asks again because the welcome was lost or is late.
    ++counters_.duplicates;
  } else {
    if (known) lose(known->info.id, "replaced by a new incarnation");
    if (header.incarnation == 0)
      return send_stranger(routing, wire::Refuse{"hello without incarnation"});
    PeerInfo info{last_id_ + 1, header.incarnation, wire::decode<wire::Hello>(payload)};
    if (peers.size() >= options.max_peers) {
      return send_stranger(routing,
                           wire::Refuse{"full: " + std::to_string(peers.size()) + " peers"});
    }
    if (on_connect) {
      if (const auto reason = on_connect(info))
        return send_stranger(routing, wire::Refuse{*reason});
      if (closed_) return;
    }
    ++last_id_;
    auto peer = std::make_unique<Peer>(std::move(info), std::string(routing), socket_options_);
    known = peer.get();
    by_routing_.emplace(peer->routing, last_id_);
    peers.emplace(last_id_, std::move(peer));
    known->link.begin_incoming(header.sequence);
  }
  const PeerId id = known->info.id;
  wire::Welcome welcome;
  welcome.peer = id;
  welcome.heartbeat_interval_ms = static_cast<std::uint32_t>(options.heartbeat_interval.count());
  welcome.heartbeat_timeout_ms = static_cast<std::uint32_t>(options.heartbeat_timeout.count());
  welcome.software = options.software;
  welcome.attributes = options.attributes;
  if (send_frame(id, wire::encode_frame({}, welcome)) && fresh && on_ready) on_ready(id);
}

int Server::Impl::transmit(std::string_view routing, zmq::message_t& frame) {
  try {
    const auto sent =
        socket_.send(zmq::buffer(routing), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    if (!sent) return 0;
    const std::size_t bytes = frame.size();
    if (!socket_.send(frame, zmq::send_flags::dontwait)) return -1;
    ++counters_.messages_sent;
    counters_.bytes_sent += bytes;
    return 1;
  } catch (const zmq::error_t&) {
    return -1;  // EHOSTUNREACH: it disconnected
  }
}

template <class M>
void Server::Impl::send_stranger(std::string_view routing, const M& message,
                                 std::uint64_t sequence) {
  std::string frame = wire::encode_frame({}, message);
  stamp(frame, options.id, options.incarnation, sequence);
  zmq::message_t out = to_message(std::move(frame));
  transmit(routing, out);
  reactor_.touch();
}

bool Server::Impl::send_frame(PeerId id, std::string frame) {
  const auto found = peers.find(id);
  if (closed_ || found == peers.end()) return false;
  Peer& peer = *found->second;
  stamp(frame, options.id, options.incarnation, peer.link.take_outgoing());
  zmq::message_t out = to_message(std::move(frame));
  reactor_.touch();
  const int sent = peer.outbox.empty() ? transmit(peer.routing, out) : 0;
  if (sent == 0 && !peer.outbox.push(std::move(out))) {
    lose(id, "does not read: its outgoing queue is full");
    return false;
  }
  if (sent < 0) lose(id, "disconnected");
  return sent >= 0;
}

void Server::Impl::request_frame(PeerId id, std::string frame, Milliseconds deadline,
                                 ReplyHandler handler) {
  auto* head = reinterpret_cast<std::byte*>(frame.data());
  const auto kind = static_cast<wire::Kind>(wire::load_le<std::uint16_t>(head + 6));
  const std::uint64_t correlation = open_call(id, kind, deadline, std::move(handler));
  wire::store_le(head + 40, correlation);
  if (!send_frame(id, std::move(frame))) {
    if (auto call = calls_.take(correlation, id)) {
      std::vector<Calls::Call> calls;
      calls.push_back(std::move(*call));
      fail_calls(std::move(calls), {wire::FailureCode::lost, name_of(id) + " is not connected"});
    }
  }
}

bool Server::Impl::flush_peer(Peer& peer) {
  while (!peer.outbox.empty()) {
    const std::size_t bytes = peer.outbox.front().size();
    const int sent = transmit(peer.routing, peer.outbox.front());
    if (sent < 0) return false;
    if (sent == 0) break;
    peer.outbox.pop(bytes);
  }
  return true;
}

void Server::Impl::flush() {
  std::vector<PeerId> gone;
  for (const auto& [id, peer] : peers) {
    if (!peer->outbox.empty() && !flush_peer(*peer)) gone.push_back(id);
  }
  for (const PeerId id : gone)
    lose(id, "disconnected");
}

void Server::Impl::tick(bool stalled) {
  const auto now = Clock::now();
  std::vector<std::pair<PeerId, std::string>> silent;
  std::vector<PeerId> due;
  for (const auto& [id, peer] : peers) {
    const auto silence = now - peer->vitals.heard;
    if (!stalled && silence > options.heartbeat_timeout) {
      const auto ms = std::chrono::duration_cast<Milliseconds>(silence).count();
      silent.emplace_back(id, "no sign of life for " + std::to_string(ms) + " ms");
    } else if (peer->outbox.empty()) {
      due.push_back(id);
    }
  }
  for (const auto& [id, why] : silent)
    lose(id, why);
  const wire::Heartbeat beat{progress_.load(std::memory_order_relaxed)};
  for (const PeerId id : due)
    send_frame(id, wire::encode_frame({}, beat));
}

std::unique_ptr<Server::Impl::Peer> Server::Impl::forget(PeerId id) {
  const auto found = peers.find(id);
  if (found == peers.end()) return nullptr;
  auto peer = std::move(found->second);
  peers.erase(found);
  by_routing_.erase(peer->routing);
  return peer;
}

void Server::Impl::lose(PeerId id, const std::string& why) {
  const std::string name = name_of(id);
  const auto peer = forget(id);
  if (!peer) return;
  send_stranger(peer->routing, wire::Goodbye{why}, peer->link.take_outgoing());
  fail_calls(calls_.take_peer(id), {wire::FailureCode::lost, "lost " + name + ": " + why});
  defer([this, id, why] {
    if (on_lost) on_lost(id, why);
  });
}

void Server::Impl::drop(PeerId id, const std::string& reason) {
  const std::string name = name_of(id);
  const auto peer = forget(id);
  if (!peer) return;
  flush_peer(*peer);
  send_stranger(peer->routing, wire::Goodbye{reason}, peer->link.take_outgoing());
  fail_calls(calls_.take_peer(id), {wire::FailureCode::lost, "dropped " + name + ": " + reason});
}

void Server::Impl::close() {
  if (closed_) return;
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : peers)
    ids.push_back(id);
  for (const PeerId id : ids)
    drop(id, "closed");
  fail_calls(calls_.take_all(), {wire::FailureCode::lost, "closed"});
  closed_ = true;
  stop_socket();
  run_deferred();
}

}  // namespace troupe::control
