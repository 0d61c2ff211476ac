#include <algorithm>

#include "tests/sim/world.h"
#include "transport/wire/codec.h"

// Links between the controller and its actors: messages arrive late, twice or not at all.
namespace troupe::sim {
namespace {

constexpr double kHeartbeat = 0.25;  // seconds between a link's heartbeats

}  // namespace

control::PeerId World::peer_of(std::uint64_t incarnation) const {
  for (const auto& [id, peer] : peers_) {
    if (peer.incarnation == incarnation) return id;
  }
  return 0;
}

bool World::send_frame(control::PeerId peer, std::string frame) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  auto& link = found->second;
  const auto sequence = link.next_out++;
  if (chance(faults_.drops_per_message)) {
    note("a message to peer " + std::to_string(peer) + " is lost");
    // The next one shows it, at the latest a heartbeat.
    after(kHeartbeat, [this, peer, sequence, incarnation = link.incarnation] {
      const auto live = peers_.find(peer);
      if (live != peers_.end() && live->second.seen_out < sequence) end_process(incarnation, 3);
    });
    return true;
  }
  const int copies = chance(faults_.doubles_per_message) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    link.down_until = std::max(link.down_until, now_ + some(0.001));
    after(link.down_until - now_, [this, peer, sequence, frame] {
      const auto live = peers_.find(peer);
      if (live == peers_.end() || sequence <= live->second.seen_out) return;
      const bool gap = sequence != live->second.seen_out + 1;
      live->second.seen_out = sequence;
      const auto process = processes_.find(live->second.incarnation);
      if (process == processes_.end()) return;
      // An actor that misses a message of its controller ends (actors/actor_process.cpp).
      if (gap) return end_process(live->second.incarnation, 3);
      process->second->receive(frame);
    });
  }
  return true;
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
  for (const auto& handler : handlers)
    handler(control::Reply(wire::Failure{wire::FailureCode::lost, "the link is lost"}));
}

void World::drop(control::PeerId peer, const std::string&) {
  if (peers_.erase(peer) > 0) fail_calls(peer);
}

void World::lose(control::PeerId peer, const std::string& why) {
  if (peers_.erase(peer) == 0) return;
  note("peer " + std::to_string(peer) + " lost: " + why);
  fail_calls(peer);
  if (supervisor_) supervisor_->lost(peer, why);
}

void World::from_actor(std::uint64_t incarnation, std::uint64_t correlation, std::string frame) {
  const auto peer = peer_of(incarnation);
  if (peer == 0) return;
  auto& link = peers_.at(peer);
  const auto sequence = link.next_in++;
  if (chance(faults_.drops_per_message)) {
    after(kHeartbeat, [this, peer, sequence] {
      const auto live = peers_.find(peer);
      if (live != peers_.end() && live->second.seen_in < sequence)
        lose(peer, "messages never arrived");
    });
    return;
  }
  const int copies = chance(faults_.doubles_per_message) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    link.up_until = std::max(link.up_until, now_ + some(0.001));
    after(link.up_until - now_, [this, peer, sequence, correlation, frame] {
      deliver_up(peer, sequence, correlation, frame);
    });
  }
}

void World::deliver_up(control::PeerId peer, std::uint64_t sequence, std::uint64_t correlation,
                       const std::string& frame) {
  const auto live = peers_.find(peer);
  if (live == peers_.end() || sequence <= live->second.seen_in) return;
  const bool gap = sequence != live->second.seen_in + 1;
  live->second.seen_in = sequence;
  if (gap) return lose(peer, "messages never arrived");
  const auto bytes = wire::as_bytes(frame);
  const auto header = wire::decode_header(bytes);
  const auto payload = wire::payload_of(bytes);
  if (correlation != 0) {
    const auto call = calls_.extract(correlation);
    if (!call) return;
    if (header.kind == wire::Kind::error) {
      call.mapped().handler(control::Reply(wire::decode<wire::Failure>(payload)));
    } else {
      call.mapped().handler(control::Reply(header, payload));
    }
    return;
  }
  const auto* actor = members_.by_peer(peer);
  if (!actor) return;
  if (header.kind == wire::Kind::task_done)
    runner_->task_done(actor->id, wire::decode<wire::TaskDone>(payload));
  if (header.kind == wire::Kind::task_failed)
    runner_->task_failed(actor->id, wire::decode<wire::TaskFailed>(payload));
}

std::optional<double> World::last_progress(control::PeerId peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  const auto process = processes_.find(found->second.incarnation);
  const bool works = process != processes_.end() && !process->second->stalls;
  return works ? now_ : found->second.last_progress;
}

}  // namespace troupe::sim
