#include <algorithm>

#include "controller/cluster/deployments.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {

std::optional<std::vector<ActorId>> Deployments::choose_actors(int world, bool evict) const {
  auto idle = members_.idle();
  const auto last_used = [&](ActorId id) {
    const auto deployment = get(members_.at(id).deployment);
    return deployment ? deployment->last_used : -1.0;
  };
  if (!evict) std::erase_if(idle, [&](ActorId id) { return members_.at(id).deployment != 0; });
  std::stable_sort(idle.begin(), idle.end(),
                   [&](ActorId a, ActorId b) { return last_used(a) < last_used(b); });
  std::map<std::string, std::vector<ActorId>> by_kind;
  for (const ActorId id : idle)
    by_kind[members_.at(id).device_kind()].push_back(id);
  for (const auto& [kind, actors] : by_kind) {
    if (static_cast<int>(actors.size()) >= world) return gather(actors, world);
  }
  return std::nullopt;
}

std::vector<ActorId> Deployments::gather(const std::vector<ActorId>& from, int world) const {
  std::map<std::string, std::vector<ActorId>> by_host;
  for (const ActorId id : from)
    by_host[members_.at(id).host].push_back(id);
  std::vector<std::vector<ActorId>> hosts;
  for (auto& [name, actors] : by_host)
    hosts.push_back(std::move(actors));
  const auto wanted = static_cast<std::size_t>(world);
  // One that is large enough, the smallest such; else the largest first. The controller's own has
  // the lowest numbers.
  std::stable_sort(hosts.begin(), hosts.end(), [&](const auto& a, const auto& b) {
    if (a.size() == b.size()) return std::ranges::min(a) < std::ranges::min(b);
    const bool whole = a.size() >= wanted && b.size() >= wanted;
    return whole ? a.size() < b.size() : a.size() > b.size();
  });
  std::vector<ActorId> chosen;
  for (auto& host : hosts) {
    host.resize(std::min(host.size(), wanted - chosen.size()));
    std::sort(host.begin(), host.end());
    chosen.insert(chosen.end(), host.begin(), host.end());
  }
  return chosen;
}

bool Deployments::is_drained(const Deployment& deployment) const {
  return std::any_of(deployment.actor_of_rank.begin(), deployment.actor_of_rank.end(),
                     [&](ActorId id) { return members_.at(id).draining; });
}

void Deployments::fill_places(Deployment& deployment) {
  // First the places that stay empty otherwise.
  for (const bool for_good : {true, false}) {
    for (std::size_t rank = 0; rank < deployment.actor_of_rank.size(); ++rank) {
      const Actor& actor = members_.at(deployment.actor_of_rank[rank]);
      if (actor.state == ActorState::ready && actor.lasting()) continue;
      if (for_good == actor.lasting()) continue;
      if (const auto spare = spare_for(actor)) replace(deployment, rank, *spare);
    }
  }
}

std::optional<ActorId> Deployments::spare_for(const Actor& lost) const {
  std::optional<ActorId> far;
  for (const ActorId id : members_.idle()) {
    const Actor& spare = members_.at(id);
    if (spare.deployment != 0 || spare.device_kind() != lost.device_kind()) continue;
    if (spare.host == lost.host) return id;
    if (!far) far = id;
  }
  // Another host's is farther away: it is for those who have no other.
  return lost.lasting() ? std::nullopt : far;
}

bool Deployments::can_be_whole(const Deployment& deployment) {
  const auto& actors = deployment.actor_of_rank;
  const auto missing = std::count_if(actors.begin(), actors.end(),
                                     [&](ActorId id) { return !members_.at(id).lasting(); });
  if (missing == 0) return true;
  const auto kind = members_.at(actors.front()).device_kind();
  std::ptrdiff_t free = 0;
  std::map<std::uint64_t, std::ptrdiff_t> unused;
  for (const auto& [id, actor] : members_.all()) {
    if (!actor.hires() || !actor.jobs.empty() || actor.device_kind() != kind) continue;
    if (!get(actor.deployment)) {
      ++free;
    } else if (actor.deployment != deployment.id) {
      ++unused[actor.deployment];
    }
  }
  // Actors that only keep a model nobody uses now are free once they have let go of it.
  for (const auto& [other, count] : unused) {
    if (free >= missing) break;
    take_down(get(other), "its actors are needed");
    free += count;
  }
  return free >= missing;
}

std::string Deployments::why_empty(const Deployment& deployment) const {
  if (!deployment.gap.empty()) return deployment.gap;
  for (const ActorId id : deployment.actor_of_rank) {
    const Actor& actor = members_.at(id);
    if (actor.lasting()) continue;
    return members_.name_of(id) + " " +
           (actor.last_cause.empty() ? "is leaving" : actor.last_cause);
  }
  return "an actor is leaving";
}

void Deployments::replace(Deployment& deployment, std::size_t rank, ActorId by) {
  Actor& old = members_.at(deployment.actor_of_rank[rank]);
  Actor& spare = members_.at(by);
  if (old.state == ActorState::ready) outside_.send(old.peer, wire::Unload{deployment.id});
  spare.deployment = std::exchange(old.deployment, 0);
  spare.rank = std::exchange(old.rank, -1);
  spare.jobs = std::exchange(old.jobs, {});
  deployment.actor_of_rank[rank] = by;
}

}  // namespace troupe::cluster
