#include "controller/deployments/members.h"

#include <algorithm>

#include "base/format.h"
#include "base/numbers.h"
#include "transport/control/keys.h"

namespace troupe::cluster {

Actor Members::empty_place(ActorId id, const std::string& host, const std::string& device,
                           bool remote) const {
  Actor actor;
  actor.id = id;
  actor.host = host;
  actor.remote = remote;
  actor.device = device;
  // Places of another kind that the host had before do not count: its first GPU is its GPU 0.
  for (const auto& [other, existing] : actors_) {
    const bool alike = existing.host == host && existing.device_kind() == actor.device_kind();
    actor.local_rank += alike ? 1 : 0;
  }
  return actor;
}

const Actor& Members::add(const std::string& host, const std::string& device, bool remote) {
  const auto id = static_cast<ActorId>(actors_.size());
  return actors_.emplace(id, empty_place(id, host, device, remote)).first->second;
}

std::vector<ActorId> Members::forgettable(
    const std::function<bool(const std::string& host)>& is_here, std::size_t kept) const {
  std::vector<ActorId> places;
  for (const auto& [id, actor] : actors_) {
    const bool unused = actor.state == ActorState::dead && actor.closed && actor.jobs.empty() &&
                        actor.parts.empty() && actor.leaving_epochs.empty();
    if (actor.remote && unused && !is_here(actor.host)) places.push_back(id);
  }
  places.resize(places.size() - std::min(kept, places.size()));
  return places;
}

void Members::move(ActorId id, const std::string& host, const std::string& device) {
  actors_.at(id) = empty_place(id, host, device, true);
}

std::string Members::name_of(ActorId id) const {
  const Actor& actor = actors_.at(id);
  const bool others = std::any_of(actors_.begin(), actors_.end(), [&](const auto& entry) {
    return entry.second.host != actor.host;
  });
  return fmt::format("actor {}{}", id, others ? " on " + actor.host : "");
}

void Members::spawned(ActorId id, std::uint64_t incarnation, std::uint32_t pid) {
  Actor& actor = actors_.at(id);
  if (actor.incarnation != 0) ++actor.restarts;
  actor.state = ActorState::starting;
  actor.incarnation = incarnation;
  actor.pid = pid;
  set_peer(actor, 0);
  actor.leaving_epochs.clear();
}

void Members::runs_as(ActorId id, std::uint64_t incarnation, std::uint32_t pid) {
  Actor& actor = actors_.at(id);
  if (actor.incarnation == incarnation) actor.pid = pid;
}

void Members::spawn_later(ActorId id, std::uint64_t incarnation) {
  Actor& actor = actors_.at(id);
  actor.state = ActorState::starting;
  actor.incarnation = incarnation;
}

void Members::host_lost(const std::string& host, const std::string& cause) {
  for (auto& [id, actor] : actors_) {
    if (actor.host != host || actor.state == ActorState::dead) continue;
    actor.closed = true;
    actor.last_cause = cause;
  }
}

void Members::reopen(ActorId id) {
  Actor& actor = actors_.at(id);
  actor.closed = actor.draining = actor.evicted = false;
  actor.failed_starts = 0;
}

bool Members::has_process(std::uint64_t incarnation) const {
  return std::any_of(actors_.begin(), actors_.end(),
                     [&](const auto& entry) { return entry.second.incarnation == incarnation; });
}

std::optional<std::string> Members::stranger(const control::PeerInfo& peer) const {
  const auto shown = peer.hello.attributes.find("token");
  if (shown == peer.hello.attributes.end() || !control::same_secret(shown->second, token_))
    return "no actor of this cluster: wrong token";
  if (!has_process(peer.incarnation))
    return fmt::format("no actor of this cluster: incarnation {}", peer.incarnation);
  return std::nullopt;
}

std::optional<std::uint64_t> Members::share_of_memory(const Actor& actor,
                                                      const wire::Hello& hello) const {
  const auto said = hello.attributes.find("memory");
  if (said == hello.attributes.end()) return std::nullopt;
  const auto bytes = parse_number<std::uint64_t>(said->second);
  if (!bytes) return std::nullopt;
  // Actors of a host have its memory together, and those on a GPU that GPU's.
  const bool on_cpu = actor.device_kind() == DeviceKind::cpu;
  std::uint64_t beside = 0, neighbours_have = 0;
  for (const auto& [id, other] : actors_) {
    if (other.host != actor.host || other.closed) continue;
    const bool same = other.device == actor.device;
    beside += on_cpu || same ? 1 : 0;
    // Who comes late finds only what its neighbours, loaded by then, have left.
    if (same) neighbours_have = std::max(neighbours_have, other.memory_limit.value_or(0));
  }
  const auto share = *bytes / std::max<std::uint64_t>(beside, 1) / 10 * 9;
  return std::max(share, neighbours_have);
}

std::optional<std::string> Members::hello(const control::PeerInfo& peer) {
  if (auto why = stranger(peer)) return why;
  Actor& actor = std::find_if(actors_.begin(), actors_.end(), [&](const auto& entry) {
                   return entry.second.incarnation == peer.incarnation;
                 })->second;
  if (actor.state == ActorState::leaving) return fmt::format("actor {} was lost before", actor.id);
  if (actor.state == ActorState::dead) return fmt::format("actor {} was declared dead", actor.id);
  if (actor.peer != 0 && actor.peer != peer.id)
    return fmt::format("actor {} has a link already", actor.id);
  for (const auto& [file, contents] : model_plugins_) {
    const auto said = peer.hello.attributes.find("model_plugin." + file);
    if (said != peer.hello.attributes.end() && said->second != contents)
      return fmt::format(
          "actor {} on {}: its model plugin {} is another version than the controller's", actor.id,
          actor.host, file);
  }
  actor.state = ActorState::ready;
  set_peer(actor, peer.id);
  actor.failed_starts = 0;
  actor.addresses.clear();
  for (const auto& [key, value] : peer.hello.attributes) {
    if (key.starts_with("address.")) actor.addresses[key.substr(8)] = value;
  }
  // Where its first process found nothing left, the place's next one is asked again.
  if (actor.memory_limit.value_or(0) == 0) {
    if (const auto share = share_of_memory(actor, peer.hello)) actor.memory_limit = share;
  }
  return std::nullopt;
}

const Actor* Members::lost(control::PeerId peer) {
  const Actor* found = by_peer(peer);
  if (!found) return nullptr;
  Actor& actor = actors_.at(found->id);
  actor.state = ActorState::leaving;
  set_peer(actor, 0);
  return &actor;
}

bool Members::fills(ActorId id, std::uint64_t incarnation) const {
  const Actor& actor = actors_.at(id);
  return actor.incarnation == incarnation && actor.state != ActorState::dead;
}

bool Members::exited(ActorId id, std::uint64_t incarnation, const std::string& cause) {
  if (!fills(id, incarnation)) return false;
  Actor& actor = actors_.at(id);
  if (actor.state == ActorState::starting) ++actor.failed_starts;
  actor.state = ActorState::dead;
  set_peer(actor, 0);
  actor.last_cause = cause;
  return true;
}

const Actor* Members::by_peer(control::PeerId peer) const {
  const auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? nullptr : &actors_.at(found->second);
}

void Members::set_peer(Actor& actor, control::PeerId peer) {
  if (actor.peer != 0) by_peer_.erase(actor.peer);
  actor.peer = peer;
  actor.held = false;
  if (peer != 0) by_peer_[peer] = actor.id;
}

std::vector<ActorId> Members::idle() const {
  std::vector<ActorId> result;
  for (const auto& [id, actor] : actors_) {
    if (is_idle(id)) result.push_back(id);
  }
  return result;
}

bool Members::is_idle(ActorId id) const {
  const Actor& actor = actors_.at(id);
  return actor.state == ActorState::ready && actor.usable() && actor.jobs.empty() &&
         actor.leaving_epochs.empty();
}

void Members::give(std::uint64_t job, const std::vector<ActorId>& actors) {
  for (const ActorId id : actors)
    actors_.at(id).jobs.insert(job);
}

void Members::take_back(std::uint64_t job) {
  for (auto& [id, actor] : actors_)
    actor.jobs.erase(job);
}

void Members::replace(std::uint64_t job, ActorId old, ActorId by) {
  actors_.at(old).jobs.erase(job);
  actors_.at(by).jobs.insert(job);
}

std::size_t Members::living_count() const {
  return std::count_if(actors_.begin(), actors_.end(), [](const auto& entry) {
    const Actor& actor = entry.second;
    return actor.state != ActorState::dead && actor.accepts_jobs();
  });
}

std::vector<std::pair<std::uint64_t, int>> Members::memory_steps() const {
  std::map<std::uint64_t, int> exactly;
  int unknown = 0;
  for (const auto& [id, actor] : actors_) {
    if (!actor.accepts_jobs()) continue;
    // To a planner a limit of 0 is none.
    ++(actor.memory_limit ? exactly[std::max<std::uint64_t>(*actor.memory_limit, 1)] : unknown);
  }
  if (exactly.empty()) return {{0, unknown}};
  std::vector<std::pair<std::uint64_t, int>> steps(exactly.begin(), exactly.end());
  int above = unknown;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    above = step->second += above;
  return steps;
}

std::size_t Members::ready_count() const {
  return std::count_if(actors_.begin(), actors_.end(),
                       [](const auto& entry) { return entry.second.state == ActorState::ready; });
}

}  // namespace troupe::cluster
