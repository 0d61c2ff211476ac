#include <algorithm>
#include <functional>
#include <numeric>

#include "controller/cluster/deployments.h"
#include "controller/mesh/placement.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {

std::vector<ActorId> Deployments::gather(const std::vector<ActorId>& from,
                                         const mesh::Degrees& degrees) const {
  std::map<std::string, std::vector<ActorId>> by_host;
  for (const ActorId id : from)
    by_host[members_.at(id).host].push_back(id);
  std::vector<std::vector<ActorId>> hosts;
  for (auto& [name, actors] : by_host)
    hosts.push_back(std::move(actors));
  // The controller's own has the lowest numbers.
  std::ranges::sort(hosts, {}, [](const auto& actors) { return std::ranges::min(actors); });
  std::vector<int> rooms;
  for (const auto& actors : hosts)
    rooms.push_back(static_cast<int>(actors.size()));
  const auto host_of = mesh::place_on_hosts(degrees, rooms);
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    hosts[host].resize(std::ranges::count(host_of, static_cast<int>(host)));
    std::ranges::sort(hosts[host], std::greater());
  }
  std::vector<ActorId> chosen;
  for (const int host : host_of) {
    chosen.push_back(hosts[host].back());
    hosts[host].pop_back();
  }
  return chosen;
}

bool Deployments::is_drained(const Deployment& deployment) const {
  return std::any_of(deployment.actor_of_rank.begin(), deployment.actor_of_rank.end(),
                     [&](ActorId id) { return members_.at(id).draining; });
}

void Deployments::fill_places(Deployment& deployment) {
  // Who suits a larger part suits the smaller ones: these choose last.
  std::vector<std::size_t> ranks(deployment.actor_of_rank.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::size_t a, std::size_t b) {
    return deployment.bytes_at(a) > deployment.bytes_at(b);
  });
  // First the places that stay empty otherwise.
  for (const bool for_good : {true, false}) {
    for (const auto rank : ranks) {
      const Actor& actor = members_.at(deployment.actor_of_rank[rank]);
      if (actor.state == ActorState::ready && actor.lasting()) continue;
      if (for_good == actor.lasting()) continue;
      if (const auto spare = spare_for(deployment, rank)) replace(deployment, rank, *spare);
    }
  }
}

std::optional<ActorId> Deployments::spare_for(const Deployment& deployment,
                                              std::size_t rank) const {
  const Actor& lost = members_.at(deployment.actor_of_rank[rank]);
  std::optional<ActorId> far;
  for (const ActorId id : members_.idle()) {
    const Actor& spare = members_.at(id);
    if (!spare.parts.empty() || spare.device_kind() != lost.device_kind()) continue;
    if (!suits(deployment, rank, id)) continue;
    if (spare.host == lost.host) return id;
    if (!far) far = id;
  }
  // Another host's is farther away: it is for those who have no other.
  return lost.lasting() ? std::nullopt : far;
}

bool Deployments::can_be_whole(const Deployment& deployment) {
  std::vector<std::uint64_t> missing;  // bytes
  for (std::size_t rank = 0; rank < deployment.actor_of_rank.size(); ++rank) {
    if (!members_.at(deployment.actor_of_rank[rank]).lasting())
      missing.push_back(deployment.bytes_at(rank));
  }
  if (missing.empty()) return true;
  const auto kind = members_.at(deployment.actor_of_rank.front()).device_kind();
  for (;;) {
    std::vector<std::uint64_t> free;  // limits
    std::vector<ActorId> keeping;     // only models that nobody uses now
    for (const auto& [id, actor] : members_.all()) {
      if (!actor.hires() || !actor.jobs.empty() || actor.device_kind() != kind) continue;
      if (actor.parts.contains(deployment.id)) continue;
      if (actor.parts.empty()) {
        free.push_back(actor.may_hold());
      } else {
        keeping.push_back(id);
      }
    }
    const auto placed = most_placed(missing, free);
    if (placed == missing.size()) return true;
    const auto with = [&](const std::vector<ActorId>& more) {
      auto limits = free;
      for (const auto id : more)
        limits.push_back(members_.at(id).may_hold());
      return most_placed(missing, std::move(limits));
    };
    if (with(keeping) < missing.size()) return false;
    std::erase_if(keeping, [&](ActorId id) { return with({id}) == placed; });
    const auto oldest = *std::min_element(
        keeping.begin(), keeping.end(),
        [&](ActorId a, ActorId b) { return at(a).back()->last_used < at(b).back()->last_used; });
    for (const auto& unused : at(oldest))
      take_down(unused, "its actors are needed");
  }
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
  old.parts.erase(deployment.id);
  spare.parts[deployment.id] = static_cast<std::int32_t>(rank);
  for (const auto& [job, bytes] : deployment.jobs) {
    old.jobs.erase(job);
    spare.jobs.insert(job);
  }
  deployment.actor_of_rank[rank] = by;
}

}  // namespace troupe::cluster
