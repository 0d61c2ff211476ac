#include "controller/app/peer_router.h"

#include "base/format.h"
#include "controller/app/messages.h"
#include "controller/service/permissions.h"

namespace troupe::cluster {

PeerRouter::PeerRouter(Tools tools) : tools_(std::move(tools)) {
  auto& server = *tools_.rooms.server;
  server.on_connect([this](const control::PeerInfo& peer) { return on_connect(peer); });
  server.on_rival([this](control::PeerId holder, const control::PeerInfo& rival) {
    tell_of_rival(holder, rival, "a second control link for " + name_of(holder));
  });
  tools_.blob_server.admit([this](const control::PeerInfo& peer) { return on_blob_connect(peer); });
  server.on_ready([this](control::PeerId peer) { on_ready(peer); });
  server.on_message(
      [this](control::PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
        on_message(peer, header, payload);
      });
  server.on_lost([this](control::PeerId peer, const control::Loss& loss) { on_lost(peer, loss); });
  // Nothing is sent a second time: what is missing may have been the end of a task.
  server.on_gap([this](control::PeerId peer, std::uint64_t missing) {
    const auto loss = control::gap(missing);
    tools_.rooms.server->drop(peer, loss.why, loss.end);
    on_lost(peer, loss);
  });
}

// Who comes in.

std::optional<std::string> PeerRouter::on_connect(const control::PeerInfo& peer) {
  if (closed_) return closed_;
  return turned_away(peer, stranger(peer));
}

std::optional<std::string> PeerRouter::turned_away(const control::PeerInfo& peer,
                                                   std::optional<std::string> why) {
  const auto& hello = peer.hello;
  if (why && !closed_)
    tools_.refusals.add(fmt::format("{} \"{}\" of {}, pid {}", to_string(hello.role), hello.name,
                                    hello.host, hello.pid),
                        *why);
  return why;
}

std::optional<std::string> PeerRouter::stranger(const control::PeerInfo& peer) {
  const auto role = peer.hello.role;
  auto& user_actors = tools_.rooms.users->actors();
  if (role == PeerRole::client || role == PeerRole::node) {
    // Of an actor that has not come yet: it would find its place taken.
    if (tools_.rooms.members->has_process(peer.incarnation) ||
        user_actors.has_process(peer.incarnation))
      return "it says that it is an actor's process, and not with an actor's role";
    if (role == PeerRole::client) return std::nullopt;
    if (const auto why = service::host_refusal(peer.user)) return why;
    if (const auto gone = tools_.rooms.hosts->gone_before(peer)) {
      const control::Loss loss{.why = "disconnected"};
      tools_.rooms.server->drop(*gone, loss.why, loss.end);
      on_lost(*gone, loss);
    }
    return tools_.rooms.hosts->hello(peer);
  }
  if (role == PeerRole::user_actor) return user_actors.hello(peer);
  if (role != PeerRole::actor)
    return "role \"" + to_string(role) + "\" is not known here: client, node or actor";
  return tools_.rooms.members->hello(peer);
}

control::BlobPass PeerRouter::on_blob_connect(const control::PeerInfo& peer) {
  if (closed_) return {.refusal = *closed_};
  const auto holder = tools_.rooms.server->peer_of(peer.incarnation);
  if (!holder) {
    const auto why = "no client of this controller: blobs are for those who have a control link";
    return {.refusal = *turned_away(peer, why)};
  }
  if (tools_.rooms.server->holder_of(peer.incarnation, peer.hello.secret)) return {};
  tell_of_rival(*holder, peer,
                "a blob link for " + name_of(*holder) + " without the secret of its control link");
  return {.refusal = "without the secret that the control link's welcome gives"};
}

std::string PeerRouter::name_of(control::PeerId peer) const {
  const auto info = tools_.rooms.server->info(peer);
  if (!info) return "a peer that is gone";
  return fmt::format("{} of {}, pid {}", info->hello.name, info->hello.host, info->hello.pid);
}

void PeerRouter::tell_of_rival(control::PeerId holder, const control::PeerInfo& rival,
                               const std::string& what) {
  turned_away(rival, what);
  constexpr std::chrono::seconds kPause{10};
  const auto now = control::Clock::now();
  std::erase_if(told_of_rivals_, [&](const auto& told) { return now - told.second >= kPause; });
  if (!told_of_rivals_.try_emplace(holder, now).second) return;
  tools_.rooms.server->send(holder, wire::Notice{"the controller has turned away " + what +
                                                 ": somebody poses as this process"});
}

void PeerRouter::on_ready(control::PeerId peer) {
  if (tools_.rooms.users->actors().ready(peer)) return;
  const auto info = tools_.rooms.server->info(peer);
  if (tools_.rooms.hosts->ready(peer)) {
    if (const auto host = tools_.rooms.hosts->name_of(peer); host && info) {
      tools_.figures.host_joined(peer, *host, info->hello);
      tools_.rooms.users->host_joined(*host, *info);
    }
    return;
  }
  const Actor* actor = tools_.rooms.members->by_peer(peer);
  if (!actor) return;
  if (info) tools_.figures.actor_came(actor->host, info->hello);
  tools_.startup.fill();
  tools_.rooms.introspection->actor_ready(actor->id);
  tools_.supervisor.ready(actor->id);
}

void PeerRouter::on_lost(control::PeerId peer, const control::Loss& loss) {
  told_of_rivals_.erase(peer);
  if (const auto host = tools_.rooms.hosts->name_of(peer)) tools_.rooms.users->host_lost(*host);
  if (tools_.rooms.users->actors().lost(peer, loss.why)) return;
  tools_.figures.host_left(peer);
  if (tools_.rooms.hosts->lost(peer, loss)) return tools_.on_host_lost();
  if (!tools_.supervisor.lost(peer, loss.why)) tools_.rooms.clients->client_lost(peer, loss);
}

// What is said.

void PeerRouter::on_message(control::PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload) {
  const auto sender = tools_.rooms.members->by_peer(peer) ? Sender::actor
                      : tools_.rooms.hosts->name_of(peer) ? Sender::host
                                                          : Sender::client;
  deliver(tools_.rooms, sender, {peer, header}, payload);
}

}  // namespace troupe::cluster
