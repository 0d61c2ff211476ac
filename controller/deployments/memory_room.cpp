#include "controller/deployments/memory_room.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <tuple>
#include <utility>

#include "controller/deployments/device_fit.h"

namespace troupe::cluster {
namespace {

bool lacks_memory(const Room& room) {
  if (room.limit == kNoLimit) return false;
  const auto held = room.held();
  return held > room.limit || room.wanted > room.limit - held;
}

bool lacks(const Room& room) {
  return lacks_memory(room) || (room.newcomer && room.residents.size() >= kMostResidents);
}

/// True when `a` goes before `b`.
bool goes_before(const Resident& a, const Resident& b) {
  const auto key = [](const Resident& one) {
    return std::tuple(one.in_use, one.last_used, one.deployment);
  };
  return key(a) < key(b);
}

/// Takes text encoders out of these rooms where memory lacks, as far as it does.
std::vector<Evictions::Encoders> give_up_encoders(std::vector<Room>& rooms) {
  std::vector<Evictions::Encoders> given;
  for (auto& room : rooms) {
    while (lacks_memory(room)) {
      Resident* first = nullptr;
      for (auto& resident : room.residents)
        if (resident.encoders > 0 && (!first || goes_before(resident, *first))) first = &resident;
      if (!first) break;
      first->encoders = 0;
      given.push_back({room.actor, first->deployment});
    }
  }
  return given;
}

void take_out(std::vector<Room>& rooms, std::uint64_t deployment) {
  for (auto& room : rooms)
    std::erase_if(room.residents,
                  [&](const Resident& one) { return one.deployment == deployment; });
}

/// Chooses unused deployments to unload where no text encoder is left to give up.
std::optional<std::vector<std::uint64_t>> unloaded(std::vector<Room> rooms, std::uint64_t keep) {
  std::vector<std::uint64_t> gone;
  for (;;) {
    const Resident* oldest = nullptr;
    bool enough = true;
    for (const auto& room : rooms) {
      if (!lacks(room)) continue;
      enough = false;
      for (const auto& resident : room.residents) {
        if (resident.in_use || resident.deployment == keep) continue;
        if (!oldest || goes_before(resident, *oldest)) oldest = &resident;
      }
    }
    if (enough) return gone;
    if (!oldest) return std::nullopt;
    gone.push_back(oldest->deployment);
    take_out(rooms, gone.back());
  }
}

}  // namespace

std::vector<MemoryNeed> needs_of(const plan::Plan& plan) {
  std::vector<MemoryNeed> needs;
  for (const auto& own : plan.memory) {
    const auto kept = own.weights + own.decoder;
    needs.push_back({kept, own.peak() - kept, own.encoders});
  }
  needs.resize(static_cast<std::size_t>(plan.degrees.world()));
  return needs;
}

std::uint64_t Room::held() const {
  std::uint64_t sum = 0;
  for (const auto& resident : residents)
    sum += resident.weights + resident.working + resident.encoders;
  return sum;
}

std::uint64_t Room::encoders() const {
  std::uint64_t sum = 0;
  for (const auto& resident : residents)
    sum += resident.encoders;
  return sum;
}

std::optional<Evictions> evictions(const std::vector<Room>& rooms, std::uint64_t keep) {
  auto bare = rooms;
  give_up_encoders(bare);
  auto gone = unloaded(std::move(bare), keep);
  if (!gone) return std::nullopt;
  // What these make room for need not go.
  auto left = rooms;
  for (const auto deployment : *gone)
    take_out(left, deployment);
  auto encoders = give_up_encoders(left);
  return Evictions{std::move(encoders), std::move(*gone)};
}

std::optional<std::vector<ActorId>> by_memory(const std::vector<MemoryNeed>& needs,
                                              std::vector<std::pair<ActorId, std::uint64_t>> limits,
                                              std::optional<Shortage>* why) {
  if (limits.size() < needs.size()) return std::nullopt;
  std::vector<std::size_t> ranks(needs.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::size_t a, std::size_t b) {
    return needs[a].total() > needs[b].total();
  });
  std::stable_sort(limits.begin(), limits.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<ActorId> actors(needs.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& [actor, limit] = limits[i];
    if (needs[ranks[i]].total() > limit) {
      if (why) *why = Shortage{static_cast<int>(ranks[i]), needs[ranks[i]].total(), actor, limit};
      return std::nullopt;
    }
    actors[ranks[i]] = actor;
  }
  return actors;
}

Capacity capacity_of(const Members& members) {
  Capacity capacity;
  for (const auto& [id, actor] : members.all())
    if (actor.accepts_jobs()) capacity[actor.device_kind()].emplace_back(id, actor.may_hold());
  return capacity;
}

std::optional<Shortage> shortage(const Capacity& capacity, const plan::Plan& plan) {
  const auto needs = needs_of(plan);
  std::optional<Shortage> found;
  for (const auto& [kind, limits] : capacity) {
    if (!has_products_of(kind, plan.request.weight_dtype)) continue;
    std::optional<Shortage> here;
    if (by_memory(needs, limits, &here)) return std::nullopt;
    if (here && (!found || here->limit > found->limit)) found = here;
  }
  return found;
}

std::size_t most_placed(std::vector<std::uint64_t> needs, std::vector<std::uint64_t> limits) {
  std::sort(needs.begin(), needs.end());
  std::sort(limits.begin(), limits.end());
  std::size_t placed = 0;
  for (const auto limit : limits)
    placed += placed < needs.size() && needs[placed] <= limit ? 1 : 0;
  return placed;
}

}  // namespace troupe::cluster
