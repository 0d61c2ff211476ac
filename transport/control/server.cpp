#include "transport/control/server.h"

#include "transport/control/server_impl.h"

namespace troupe::control {

Server::Server(boost::asio::io_context& io, ServerOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {
  impl_->open();
}
Server::~Server() {
  impl_->abandon();
}

std::string Server::endpoint() const {
  return impl_->bound;
}
std::uint64_t Server::incarnation() const {
  return impl_->options.incarnation;
}

void Server::on_connect(std::function<std::optional<std::string>(const PeerInfo&)> handler) {
  impl_->on_connect = std::move(handler);
}
void Server::on_rival(std::function<void(PeerId, const PeerInfo&)> handler) {
  impl_->on_rival = std::move(handler);
}
void Server::on_ready(std::function<void(PeerId)> handler) {
  impl_->on_ready = std::move(handler);
}
void Server::on_message(
    std::function<void(PeerId, const wire::Header&, std::span<const std::byte>)> handler) {
  impl_->on_message = std::move(handler);
}
void Server::on_lost(std::function<void(PeerId, const Loss&)> handler) {
  impl_->on_lost = std::move(handler);
}
void Server::on_gap(std::function<void(PeerId, std::uint64_t missing)> handler) {
  impl_->on_gap = std::move(handler);
}

void Server::drop(PeerId peer, const std::string& reason, wire::LinkEnd end) {
  impl_->drop(peer, {end, reason});
}
void Server::close() {
  impl_->close();
}

std::size_t Server::peers() const {
  return impl_->peers.size();
}
std::vector<PeerId> Server::peer_ids() const {
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : impl_->peers)
    ids.push_back(id);
  return ids;
}
std::optional<PeerInfo> Server::info(PeerId peer) const {
  const auto found = impl_->peers.find(peer);
  if (found == impl_->peers.end()) return std::nullopt;
  return found->second->info;
}
std::optional<PeerVitals> Server::vitals(PeerId peer) const {
  const auto found = impl_->peers.find(peer);
  if (found == impl_->peers.end()) return std::nullopt;
  return found->second->vitals;
}
ClientUser Server::user(PeerId peer) const {
  const auto found = impl_->peers.find(peer);
  if (found == impl_->peers.end()) return {"", ClientRole::own_jobs};
  return found->second->info.user;
}
std::optional<PeerId> Server::peer_of(std::uint64_t incarnation) const {
  const auto found = impl_->by_incarnation.find(incarnation);
  if (found == impl_->by_incarnation.end()) return std::nullopt;
  return found->second;
}
std::optional<PeerId> Server::holder_of(std::uint64_t incarnation, std::string_view secret) const {
  const auto peer = peer_of(incarnation);
  if (!peer || !same_secret(impl_->peers.at(*peer)->info.secret, secret)) return std::nullopt;
  return peer;
}
const Counters& Server::counters() const {
  return impl_->counters();
}
void Server::set_progress(std::uint64_t progress) {
  impl_->set_progress(progress);
}

bool Server::send_frame(PeerId peer, std::string frame) {
  return impl_->send_frame(peer, std::move(frame));
}
void Server::request_frame(PeerId peer, std::string frame, Milliseconds deadline,
                           ReplyHandler handler) {
  impl_->request_frame(peer, std::move(frame), deadline, std::move(handler));
}

}  // namespace troupe::control
