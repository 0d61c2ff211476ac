#include "transport/control/server_impl.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/format.h"
#include "transport/control/endpoint.h"
#include "transport/control/link.h"
#include "transport/control/zap.h"

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

}  // namespace troupe::control
