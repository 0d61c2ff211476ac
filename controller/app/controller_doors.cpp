#include "controller/app/controller.h"

#include <boost/asio/ip/address.hpp>
#include <stdexcept>

#include "controller/gateway/permissions.h"
#include "transport/control/blob_endpoint.h"
#include "transport/control/loss.h"
#include "transport/control/own_keys.h"
#include "transport/wire/actor_messages.h"

// Where the world comes in: endpoints, who may speak, and which room each message is for.

namespace troupe::cluster {
namespace {

/// Messages of up to a MiB that lie in ZeroMQ for a peer, and of it, each bounded in no other way.
constexpr int kUnread = 64;

/// Who starts a controller gives one port; the other is named as what it is.
std::runtime_error no_port_for_blobs(const std::string& endpoint, std::string why) {
  constexpr std::string_view kTag = "[control] ";
  if (why.starts_with(kTag)) why.erase(0, kTag.size());
  return std::runtime_error("[control] " + endpoint +
                            " needs the next port, too, for blobs: " + why);
}

}  // namespace

std::shared_ptr<control::Guard> Controller::make_guard(const control::ServerOptions& server) {
  const auto endpoint = control::parse_endpoint(server.endpoint);
  const bool own = options_.keys.empty();
  // Beyond this machine without keys is refused when it binds, unless that is what is wanted.
  if (endpoint.ipc || (own && (options_.insecure || !endpoint.loopback()))) return nullptr;
  const control::KeyFolder keys = own ? control::own_keys() : control::KeyFolder(options_.keys);
  if (!own) keys.clients();  // throws where nobody could come in
  // Of this user's own keys the file may go with his session, and the cluster goes on.
  control::AllowList allowed(own ? "" : keys.clients_file());
  if (own) allowed.add(keys.client().own.public_key, "default", control::ClientRole::operate);
  auto guard = control::Guard::open(io_, server.socket.context, keys.server(), allowed);
  guard->on_refused(
      [this](const std::string& who, const std::string& why) { refusals_.add(who, why); });
  return guard;
}

void Controller::open_endpoints() {
  if (options_.listen.empty()) folder_.emplace();
  control::ServerOptions server;
  server.endpoint = options_.listen.empty() ? folder_->endpoint("control.sock") : options_.listen;
  server.software = "troupe " TROUPE_VERSION;
  server.insecure = options_.insecure;
  if (store_) server.attributes["journal"] = past_.id;
  server.socket.context = control::make_context();
  server.socket.high_water_mark = kUnread;
  server.guard = guard_ = make_guard(server);
  // The blob channel of a tcp controller is at the next port; where port 0 was asked for, look for
  // a free pair.
  for (int attempt = 0;; ++attempt) {
    server_ = std::make_unique<control::Server>(io_, server);
    socket_file_ = SocketFile(server_->endpoint());
    auto blobs = server;
    try {
      blobs.endpoint = control::blob_endpoint_of(server_->endpoint());
      blob_server_ = std::make_unique<control::BlobServer>(io_, blobs, blobs_);
      blob_socket_file_ = SocketFile(blob_server_->endpoint());
      break;
    } catch (const std::runtime_error& error) {
      if (server.endpoint.ends_with(":0") && attempt < 20) continue;
      const bool none = blobs.endpoint == server.endpoint;
      if (none || control::parse_endpoint(server.endpoint).ipc) throw;
      throw no_port_for_blobs(server.endpoint, error.what());
    }
  }
  server_->on_connect([this](const control::PeerInfo& peer) { return on_connect(peer); });
  server_->on_rival([this](control::PeerId holder, const control::PeerInfo& rival) {
    tell_of_rival(holder, rival, "a second control link for " + name_of(holder));
  });
  blob_server_->admit([this](const control::PeerInfo& peer) { return on_blob_connect(peer); });
  server_->on_ready([this](control::PeerId peer) {
    if (users_->actors().ready(peer)) return;
    if (hosts_->ready(peer)) {
      const auto info = server_->info(peer);
      if (const auto host = hosts_->name_of(peer); host && info) {
        figures_->host_joined(peer, *host, info->hello);
        users_->host_joined(*host, *info);
      }
      return;
    }
    const Actor* actor = members_.by_peer(peer);
    if (!actor) return;
    if (const auto info = server_->info(peer)) figures_->actor_came(actor->host, info->hello);
    fill_places();
    introspection_->actor_ready(actor->id);
    supervisor_->ready(actor->id);
  });
  server_->on_message(
      [this](control::PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
        on_message(peer, header, payload);
      });
  server_->on_lost([this](control::PeerId peer, const std::string& why) { on_lost(peer, why); });
  // Nothing is sent a second time: what is missing may have been the end of a task.
  server_->on_gap([this](control::PeerId peer, std::uint64_t missing) {
    const std::string why = std::to_string(missing) + " " + std::string(control::kMissing);
    server_->drop(peer, why);
    on_lost(peer, why);
  });
}

std::string Controller::tensor_host() const {
  if (!options_.tensor_host.empty()) return options_.tensor_host;
  const auto listens = control::parse_endpoint(server_->endpoint());
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(listens.host, error);
  return listens.ipc || error || address.is_unspecified() ? "" : listens.host;
}

void Controller::on_lost(control::PeerId peer, const std::string& why) {
  told_of_rivals_.erase(peer);
  if (const auto host = hosts_->name_of(peer)) users_->host_lost(*host, why);
  if (users_->actors().lost(peer, why)) return;
  figures_->host_left(peer);
  if (hosts_->lost(peer, why)) return check_stopped();
  if (!supervisor_->lost(peer, why)) gateway_->client_lost(peer, why);
}

std::optional<std::string> Controller::on_connect(const control::PeerInfo& peer) {
  if (stopping_) return "the cluster is stopping";
  return turned_away(peer, stranger(peer));
}

std::optional<std::string> Controller::turned_away(const control::PeerInfo& peer,
                                                   std::optional<std::string> why) {
  const auto& hello = peer.hello;
  if (why && !stopping_)
    refusals_.add(to_string(hello.role) + " \"" + hello.name + "\" of " + hello.host + ", pid " +
                      std::to_string(hello.pid),
                  *why);
  return why;
}

std::optional<std::string> Controller::stranger(const control::PeerInfo& peer) {
  if (peer.hello.role == PeerRole::client || peer.hello.role == PeerRole::node) {
    // Of an actor that has not come yet: it would find its place taken.
    if (members_.has_process(peer.incarnation) || users_->actors().has_process(peer.incarnation))
      return "it says that it is an actor's process, and not with an actor's role";
    if (peer.hello.role == PeerRole::client) return std::nullopt;
  }
  if (peer.hello.role == PeerRole::user_actor) return users_->actors().hello(peer);
  if (peer.hello.role == PeerRole::node) {
    if (const auto why = gateway::host_refusal(peer.user)) return why;
    return hosts_->hello(peer);
  }
  if (peer.hello.role != PeerRole::actor)
    return "role \"" + to_string(peer.hello.role) + "\" is not known here: client, node or actor";
  return members_.hello(peer);
}

control::BlobPass Controller::on_blob_connect(const control::PeerInfo& peer) {
  if (stopping_) return {.refusal = "the cluster is stopping"};
  const auto holder = server_->peer_of(peer.incarnation);
  if (!holder) {
    const auto why = "no client of this controller: blobs are for those who have a control link";
    return {.refusal = *turned_away(peer, why)};
  }
  if (server_->holder_of(peer.incarnation, peer.hello.secret)) return {};
  tell_of_rival(*holder, peer,
                "a blob link for " + name_of(*holder) + " without the secret of its control link");
  return {.refusal = "without the secret that the control link's welcome gives"};
}

std::string Controller::name_of(control::PeerId peer) const {
  const auto info = server_->info(peer);
  if (!info) return "a peer that is gone";
  return info->hello.name + " of " + info->hello.host + ", pid " + std::to_string(info->hello.pid);
}

void Controller::tell_of_rival(control::PeerId holder, const control::PeerInfo& rival,
                               const std::string& what) {
  turned_away(rival, what);
  constexpr std::chrono::seconds kPause{10};
  const auto now = control::Clock::now();
  std::erase_if(told_of_rivals_, [&](const auto& told) { return now - told.second >= kPause; });
  if (!told_of_rivals_.try_emplace(holder, now).second) return;
  server_->send(holder, wire::Notice{"the controller has turned away " + what +
                                     ": somebody poses as this process"});
}

void Controller::on_message(control::PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload) {
  const Actor* actor = members_.by_peer(peer);
  if (!actor) {
    if (stopping_ && header.kind == wire::Kind::submit_job) {
      server_->reply(peer, header,
                     wire::Failure{wire::FailureCode::refused, "the cluster is stopping"});
      return;
    }
    if (const auto why = gateway::refusal(server_->user(peer), header.kind)) {
      if (header.is_request())
        server_->reply(peer, header, wire::Failure{wire::FailureCode::refused, *why});
      return;
    }
    if (users_->actors().on_message(peer, header, payload)) return;
    if (header.kind == wire::Kind::drain_places)
      return drain(peer, header, wire::decode<wire::DrainPlaces>(payload));
    if (const auto host = hosts_->name_of(peer); host && users_->on_message(*host, header, payload))
      return;
    if (hosts_->on_message(peer, header, payload)) return;
    gateway_->on_message(peer, header, payload);
    return;
  }
  switch (header.kind) {
    case wire::Kind::task_done:
      return runner_->task_done(actor->id, wire::decode<wire::TaskDone>(payload));
    case wire::Kind::task_failed:
      return runner_->task_failed(actor->id, wire::decode<wire::TaskFailed>(payload));
    default:
      return;
  }
}

}  // namespace troupe::cluster
