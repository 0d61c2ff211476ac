#include <algorithm>

#include "base/endian.h"
#include "tests/sim/world.h"
#include "transport/control/peer.h"
#include "transport/wire/codec.h"

// Control links between the controller and its actors. Frames come late, twice, in another order or
// not at all; both ends judge them by number, as Server and Connection do.
namespace troupe::sim {
namespace {

constexpr double kHeartbeat = 0.25;  // seconds between a link's heartbeats

}  // namespace

void World::hello(cluster::ActorId id, std::uint64_t incarnation) {
  const auto cable = std::make_shared<Cable>();
  cable->incarnation = incarnation;
  cable->life = life_;
  cable->actor = id;
  cable->at_actor.take_outgoing();    // the hello
  cable->at_actor.begin_incoming(1);  // the welcome
  cables_[incarnation] = cable;
  greet(cable);
  // It is said again and again until the welcome comes, always with the same number.
  if (faults_.doubles_per_message > 0 && rng_() % 4 == 0)
    after(some(4), [this, cable] { greet(cable); });
}

void World::greet(const CablePtr& cable) {
  if (cable->known) return;
  const bool again = cable->peer != 0;
  control::PeerInfo info;
  info.id = next_peer_++;
  info.incarnation = cable->incarnation;
  info.hello.attributes = {
      {"token", kToken + std::to_string(cable->life)}, {"address.shm", "a"}, {"address.nccl", "a"}};
  if (members_.hello(info)) return;
  if (again) throw Violation("a link that was lost is up again");
  cable->peer = info.id;
  cable->known = true;
  cable->at_controller.begin_incoming(1);
  cable->at_controller.take_outgoing();
  peers_[info.id] = cable;
  supervisor_->ready(cable->actor);
}

bool World::send_frame(control::PeerId peer, std::string frame) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  carry(found->second, /*up=*/false, std::move(frame));
  return true;
}

void World::from_actor(std::uint64_t incarnation, std::uint64_t correlation, std::string frame) {
  const auto found = cables_.find(incarnation);
  if (found == cables_.end()) return;
  auto& told = found->second->told;
  if (correlation == 0 && faults_.ghosts) {
    told.push_back(frame);
    if (told.size() > 8) told.pop_front();
  }
  carry(found->second, /*up=*/true, std::move(frame));
}

void World::carry(const CablePtr& cable, bool up, std::string frame) {
  auto* head = reinterpret_cast<std::byte*>(frame.data());
  store_le(head + 16, up ? cable->peer : control::PeerId{0});
  store_le(head + 24, up ? cable->incarnation : cable->life);
  store_le(head + 32, (up ? cable->at_actor : cable->at_controller).take_outgoing());
  if (up ? cable->up_cut : cable->down_cut) return;
  const auto name = [&] { return (up ? "from peer " : "to peer ") + std::to_string(cable->peer); };
  if (chance(faults_.drops_per_message)) {
    note("a message " + name() + " is lost");
    return after(kHeartbeat, [this, cable, up] { beat(cable, up); });  // which shows it
  }
  double& until = up ? cable->up_until : cable->down_until;
  if (chance(faults_.late_per_message)) {
    const double from = std::max(until, now_);
    until = from + some(2);
    note("nothing comes " + name() + " for " + std::to_string(until - from) + " s");
    if (until - from > kSilence) at(from + kSilence, [this, cable, up] { silence(cable, up); });
  }
  const auto arrive = [this, cable, up, frame = std::move(frame)] {
    up ? arrive_up(cable, frame) : arrive_down(cable, frame);
  };
  if (chance(faults_.reorders_per_message)) {
    note("a message " + name() + " is overtaken");
    return after(some(0.1), arrive);
  }
  until = std::max(until, now_ + some(0.001));
  if (chance(faults_.doubles_per_message)) at(until + some(rng_() % 2 ? 0.002 : 3), arrive);
  at(until, arrive);
}

void World::beat(const CablePtr& cable, bool up) {
  const bool speaks = up ? cables_.contains(cable->incarnation) : cable->known;
  if (speaks) carry(cable, up, wire::encode_frame({}, wire::Heartbeat{}));
}

void World::silence(const CablePtr& cable, bool up) {
  if (!up) return end_process(cable->incarnation, 3);
  if (cable->known) lose(cable->peer, std::string(control::kSilent));
}

void World::cut(const CablePtr& cable) {
  const auto ways = rng_() % 4;
  cable->up_cut = ways != 0;
  cable->down_cut = ways != 1;
  note("the link of actor " + std::to_string(cable->actor) + " is cut" +
       (ways == 0   ? " downwards"
        : ways == 1 ? " upwards"
                    : ""));
  if (ways == 3) {  // both ends see it break
    if (cable->known) lose(cable->peer, "the link is cut");
    return after(some(0.05), [this, cable] { end_process(cable->incarnation, 3); });
  }
  for (const bool up : {false, true}) {
    if (up ? cable->up_cut : cable->down_cut)
      after(kSilence, [this, cable, up] { silence(cable, up); });
  }
}

void World::arrive_down(const CablePtr& cable, const std::string& frame) {
  const auto found = processes_.find(cable->incarnation);
  if (found == processes_.end()) return;
  auto& process = *found->second;
  if (process.stopped_until > now_)
    return at(process.stopped_until, [this, cable, frame] { arrive_down(cable, frame); });
  const auto header = wire::decode_header(wire::as_bytes(frame));
  std::uint64_t missing = 0;
  switch (cable->at_actor.arrive(header.sequence, missing)) {
    case control::SequenceNumbers::Arrival::duplicate:
      ++link_counts_.duplicates;
      return;
    case control::SequenceNumbers::Arrival::gap:  // it ends (actors/user/control_thread.cpp)
      ++link_counts_.gaps;
      if (!process.hangs) end_process(cable->incarnation, 3);
      return;
    case control::SequenceNumbers::Arrival::next:
      break;
  }
  if (header.kind != wire::Kind::heartbeat) process.receive(frame);
}

void World::arrive_up(const CablePtr& cable, const std::string& frame) {
  if (!cable->known) {
    ++link_counts_.strangers;
    if (cable->peer != 0 && members_.by_peer(cable->peer) && peers_.contains(cable->peer))
      throw Violation("a lost link still belongs to an actor");
    return;
  }
  const auto bytes = wire::as_bytes(frame);
  const auto header = wire::decode_header(bytes);
  std::uint64_t missing = 0;
  switch (cable->at_controller.arrive(header.sequence, missing)) {
    case control::SequenceNumbers::Arrival::duplicate:
      ++link_counts_.duplicates;
      return;
    case control::SequenceNumbers::Arrival::gap: {  // as Controller's on_gap
      ++link_counts_.gaps;
      const auto why = control::gap(missing).why;
      drop(cable->peer, why);
      note("peer " + std::to_string(cable->peer) + ": " + why);
      supervisor_->lost(cable->peer, why);
      return;
    }
    case control::SequenceNumbers::Arrival::next:
      break;
  }
  if (header.kind == wire::Kind::heartbeat) return;
  if (header.is_reply()) {
    const auto call = calls_.find(header.correlation);
    if (call == calls_.end() || call->second.peer != cable->peer) return;  // too late
    const auto handler = std::move(calls_.extract(call).mapped().handler);
    const auto payload = wire::payload_of(bytes);
    return header.kind == wire::Kind::error
               ? handler(control::Reply(wire::decode<wire::Failure>(payload)))
               : handler(control::Reply(header, payload));
  }
  const auto* actor = members_.by_peer(cable->peer);
  if (!actor) return;
  const auto id = actor->id;
  hand(id, frame);
  if (!chance(faults_.echoes_per_message)) return;
  after(rng_() % 2 ? 0 : some(0.3), [this, id, frame, life = life_] {
    if (life == life_) echo(id, frame);
  });
}

void World::request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                          control::ReplyHandler handler) {
  auto header = wire::decode_header(wire::as_bytes(frame));
  const auto correlation = header.correlation = next_call_++;
  wire::encode_header(header, std::span<std::byte, wire::kHeaderSize>(
                                  reinterpret_cast<std::byte*>(frame.data()), wire::kHeaderSize));
  calls_[correlation] = {peer, std::move(handler)};
  const auto fail = [this, correlation](wire::FailureCode code) {
    const auto call = calls_.extract(correlation);
    if (call) call.mapped().handler(control::Reply(wire::Failure{code, "no answer"}));
  };
  if (!send_frame(peer, std::move(frame)))
    return after(0, [fail] { fail(wire::FailureCode::lost); });
  after(static_cast<double>(deadline.count()) * 1e-3, [fail] { fail(wire::FailureCode::timeout); });
}

void World::fail_calls(control::PeerId peer) {
  std::vector<control::ReplyHandler> handlers;
  for (auto call = calls_.begin(); call != calls_.end();) {
    if (call->second.peer != peer) {
      ++call;
      continue;
    }
    handlers.push_back(std::move(call->second.handler));
    call = calls_.erase(call);
  }
  if (handlers.empty()) return;
  after(0, [handlers = std::move(handlers)] {
    for (const auto& handler : handlers)
      handler(control::Reply(wire::Failure{wire::FailureCode::lost, "the link is lost"}));
  });
}

CablePtr World::forget(control::PeerId peer) {
  const auto node = peers_.extract(peer);
  if (node.empty()) return nullptr;
  const auto cable = node.mapped();
  cable->known = false;
  fail_calls(peer);
  // The other end is told so, if anything reaches it, and ends.
  if (!cable->down_cut) {
    after(some(0.01), [this, cable] {
      const auto process = processes_.find(cable->incarnation);
      if (process == processes_.end() || process->second->hangs) return;
      at(std::max(now_, process->second->stopped_until),
         [this, cable] { end_process(cable->incarnation, 3); });
    });
  }
  return cable;
}

void World::drop(control::PeerId peer, const std::string&) {
  forget(peer);
}

void World::lose(control::PeerId peer, const std::string& why) {
  if (!forget(peer)) return;
  note("peer " + std::to_string(peer) + " lost: " + why);
  door_->post([this, peer, why] { supervisor_->lost(peer, why); });
}

std::optional<double> World::last_progress(control::PeerId peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  const auto process = processes_.find(found->second->incarnation);
  return process == processes_.end() ? 0 : process->second->last_progress();
}

}  // namespace troupe::sim
