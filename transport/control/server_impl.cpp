#include "transport/control/server_impl.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/format.h"
#include "transport/control/descriptors.h"
#include "transport/control/endpoint.h"
#include "transport/control/zap.h"

// What peers send: hello, signs of life, requests, replies.

namespace troupe::control {
namespace {

constexpr int kUnread = 4096;  // messages that may lie before a goodbye

/// Beginning of the routing id of a link that is carried; ZeroMQ gives such an id to no connection.
/// From a connection that has chosen one, nothing is taken.
constexpr std::string_view kMuxPrefix{"\0C", 2};
constexpr std::size_t kMuxRouting = kMuxPrefix.size() + sizeof(PeerId) + sizeof(std::uint32_t);

}  // namespace

std::string mux_routing(const MuxPlace& place) {
  std::string routing(kMuxPrefix);
  routing.append(reinterpret_cast<const char*>(&place.carrier), sizeof place.carrier);
  routing.append(reinterpret_cast<const char*>(&place.slot), sizeof place.slot);
  return routing;
}

std::optional<MuxPlace> mux_place(std::string_view routing) {
  if (routing.size() != kMuxRouting || !routing.starts_with(kMuxPrefix)) return std::nullopt;
  MuxPlace place;
  std::memcpy(&place.carrier, routing.data() + kMuxPrefix.size(), sizeof place.carrier);
  std::memcpy(&place.slot, routing.data() + kMuxPrefix.size() + sizeof place.carrier,
              sizeof place.slot);
  return place;
}

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
  guarded_ = keys;
  if (keys) {
    if (options.guard->context() != context_)
      throw std::logic_error("[control] the guard of keys belongs to another context");
    options.guard->protect(socket_);
  }
  bound = bind_endpoint(socket_, options.endpoint, keys || options.insecure);
  endpoint_ = WatchedEndpoint(bound);
}

void Server::Impl::open() {
  start_reactor();
  start_ticking(options.heartbeat_interval, options.heartbeat_timeout);
}

std::string Server::Impl::name_of(PeerId id) const {
  const auto found = peers.find(id);
  if (found == peers.end()) return fmt::format("peer {}", id);
  const wire::Hello& hello = found->second->info.hello;
  return fmt::format("{} (peer {})", hello.name.empty() ? to_string(hello.role) : hello.name, id);
}

Server::Impl::Peer* Server::Impl::find(std::string_view routing) {
  const auto found = by_routing_.find(routing);
  return found == by_routing_.end() ? nullptr : peers.at(found->second).get();
}

int Server::Impl::transmit(std::string_view routing, zmq::message_t& frame) {
  if (const auto place = mux_place(routing)) return carry(place->carrier, place->slot, frame);
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

int Server::Impl::carry(PeerId id, std::uint32_t slot, const zmq::message_t& frame) {
  const auto found = peers.find(id);
  if (found == peers.end() || !found->second->carriage) return -1;
  Peer& carrier = *found->second;
  if (carrier.hung_up) return 1;  // its own end, which follows, says more
  auto& out = carrier.carriage->out;
  const auto owed = carrier.outbox.bytes() + out.bytes();
  if (owed + frame.size() > socket_options_.max_queued_bytes) {
    carrier.hung_up = true;
    defer([this, id, owed] {
      lose(id, fmt::format("does not read: the links that it carries are owed {} bytes", owed));
    });
    return 1;
  }
  if (out.empty()) laden_.push_back(id);
  out.add(slot, frame.to_string_view());
  return 1;
}

void Server::Impl::send_mux(PeerId id) {
  const auto found = peers.find(id);
  if (found == peers.end() || !found->second->carriage) return;
  for (const auto& message : found->second->carriage->out.take()) {
    if (!send_frame(id, wire::encode_frame({}, message))) return;
  }
}

bool Server::Impl::send_frame(PeerId id, std::string frame) {
  const auto found = peers.find(id);
  if (closed_ || found == peers.end()) return false;
  Peer& peer = *found->second;
  if (peer.hung_up) return false;
  wire::FrameHead(frame).set_sender(options.id, options.incarnation, peer.link.take_outgoing());
  settle(peer, frame);
  const std::size_t bytes = frame.size();
  zmq::message_t out = to_message(std::move(frame));
  reactor_.touch();
  const int sent = peer.outbox.empty() ? transmit(peer.routing, out) : 0;
  if (sent < 0) hang_up(id);
  if (sent != 0) return sent > 0;
  if (!peer.outbox.push(std::move(out))) {
    lose(id, "does not read: its outgoing queue is full");
    return false;
  }
  queued_bytes_ += bytes;
  bound_queues();
  return peers.contains(id);
}

void Server::Impl::bound_queues() {
  while (queued_bytes_ > options.max_queued_bytes_of_all) {
    const auto worst = std::ranges::max_element(
        peers, {}, [](const auto& each) { return each.second->outbox.bytes(); });
    if (worst == peers.end()) return;
    lose(worst->first,
         fmt::format("does not read: of {} bytes in all outgoing queues its own holds {}",
                     queued_bytes_, worst->second->outbox.bytes()));
  }
}

void Server::Impl::settle(Peer& peer, std::string_view frame) {
  if (const auto request = wire::answered_by(frame)) peer.requests.answered(request, open_);
}

bool Server::Impl::flush_peer(Peer& peer) {
  while (!peer.outbox.empty()) {
    const std::size_t bytes = peer.outbox.front().size();
    const int sent = transmit(peer.routing, peer.outbox.front());
    if (sent < 0) return false;
    if (sent == 0) break;
    peer.outbox.pop(bytes);
    queued_bytes_ -= bytes;
  }
  return true;
}

void Server::Impl::flush() {
  for (const PeerId id : std::exchange(laden_, {}))
    send_mux(id);
  if (queued_bytes_ == 0) return;
  std::vector<PeerId> gone;
  for (const auto& [id, peer] : peers) {
    if (!peer->hung_up && !peer->outbox.empty() && !flush_peer(*peer)) gone.push_back(id);
  }
  for (const PeerId id : gone)
    hang_up(id);
}

void Server::Impl::tick(bool stalled) {
  if (!stalled) AcceptLimiter::of_process().expire();
  std::vector<std::pair<PeerId, Loss>> silent;
  std::vector<PeerId> due;
  for (const auto& [id, peer] : peers) {
    const auto silence = silence_since(peer->vitals.heard);
    if (silence > options.heartbeat_timeout) {
      const auto ms = std::chrono::duration_cast<Milliseconds>(silence).count();
      const auto why = fmt::format("{} for {} ms", kSilent, ms);
      silent.emplace_back(id, Loss{wire::LinkEnd::silent, why});
    } else if (peer->outbox.empty()) {
      due.push_back(id);
    }
  }
  for (const auto& [id, loss] : silent)
    lose(id, loss);
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
  peer->requests.forget(open_);
  queued_bytes_ -= peer->outbox.bytes();
  if (peer->carrier == 0) AcceptLimiter::of_process().parted(peer->at);
  if (const auto carrier = peers.find(peer->carrier); carrier != peers.end())
    carrier->second->carriage->links.erase(id);
  const auto process = by_incarnation.find(peer->info.incarnation);
  if (process != by_incarnation.end() && process->second == id) by_incarnation.erase(process);
  return peer;
}

void Server::Impl::hang_up(PeerId id) {
  peers.at(id)->hung_up = true;
  defer([this, id] {
    for (int i = 0; i < kUnread && peers.contains(id) && !closed_; ++i) {
      if (!receive_one()) break;
    }
    reactor_.touch();
    if (!closed_) lose(id, "disconnected");
  });
}

void Server::Impl::lose(PeerId id, const Loss& loss) {
  const std::string name = name_of(id);
  const auto peer = forget(id);
  if (!peer) return;
  send_stranger(peer->routing, wire::Goodbye{loss.why, loss.end}, peer->link.take_outgoing());
  fail_calls(calls_.take_peer(id), {wire::FailureCode::lost, "lost " + name + ": " + loss.why});
  defer([this, id, loss] {
    if (on_lost) on_lost(id, loss);
  });
  if (peer->carriage) lose_mux(peer->carriage->links, loss.why);
}

void Server::Impl::lose_mux(const std::set<PeerId>& links, const std::string& why) {
  for (const PeerId link : links)
    lose(link, "its host's link is lost: " + why);
}

void Server::Impl::drop(PeerId id, const Loss& how) {
  const std::string name = name_of(id);
  send_mux(id);
  if (const auto found = peers.find(id); found != peers.end()) flush_peer(*found->second);
  const auto peer = forget(id);
  if (!peer) return;
  send_stranger(peer->routing, wire::Goodbye{how.why, how.end}, peer->link.take_outgoing());
  fail_calls(calls_.take_peer(id), {wire::FailureCode::lost, "dropped " + name + ": " + how.why});
  if (peer->carriage) lose_mux(peer->carriage->links, how.why);
}

void Server::Impl::close() {
  if (closed_) return;
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : peers)
    ids.push_back(id);
  // Carriers last: they take the others' goodbyes along.
  std::partition(ids.begin(), ids.end(), [this](PeerId id) { return peers.at(id)->carrier != 0; });
  for (const PeerId id : ids)
    drop(id, {.why = "closed"});
  fail_calls(calls_.take_all(), {wire::FailureCode::lost, "closed"});
  closed_ = true;
  stop_socket();
  run_deferred();
}

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
    case SequenceNumbers::Arrival::duplicate:
      ++counters_.duplicates;
      return;
    case SequenceNumbers::Arrival::gap:
      counters_.gaps += missing;
      if (on_gap) on_gap(id, missing);
      if (closed_ || !peers.contains(id)) return;
      break;
    case SequenceNumbers::Arrival::next:
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
    // The peer asks again where its welcome was lost or is late.
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
