#include "controller/deployments/memory_room.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

namespace troupe::cluster {
namespace {

bool lacks(const Room& room) {
  if (room.newcomer && room.residents.size() >= kMostResidents) return true;
  if (room.limit == kNoLimit) return false;
  const auto held = room.held();
  return held > room.limit || room.wanted > room.limit - held;
}

}  // namespace

std::vector<MemoryNeed> needs_of(const plan::Plan& plan) {
  std::vector<MemoryNeed> needs;
  for (const auto& own : plan.memory) {
    const auto kept = own.weights + own.decoder;
    needs.push_back({kept, own.peak() - kept});
  }
  needs.resize(static_cast<std::size_t>(plan.degrees.world()));
  return needs;
}

std::uint64_t Room::held() const {
  std::uint64_t sum = 0;
  for (const auto& resident : residents)
    sum += resident.weights + resident.working;
  return sum;
}

std::optional<std::vector<std::uint64_t>> evictions(const std::vector<Room>& rooms,
                                                    std::uint64_t keep) {
  auto left = rooms;
  std::vector<std::uint64_t> gone;
  for (;;) {
    const Resident* oldest = nullptr;
    bool enough = true;
    for (const auto& room : left) {
      if (!lacks(room)) continue;
      enough = false;
      for (const auto& resident : room.residents) {
        if (resident.in_use || resident.deployment == keep) continue;
        const bool older =
            !oldest || resident.last_used < oldest->last_used ||
            (resident.last_used == oldest->last_used && resident.deployment < oldest->deployment);
        if (older) oldest = &resident;
      }
    }
    if (enough) return gone;
    if (!oldest) return std::nullopt;
    gone.push_back(oldest->deployment);
    for (auto& room : left) {
      std::erase_if(room.residents,
                    [&](const Resident& one) { return one.deployment == gone.back(); });
    }
  }
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

std::size_t most_placed(std::vector<std::uint64_t> needs, std::vector<std::uint64_t> limits) {
  std::sort(needs.begin(), needs.end());
  std::sort(limits.begin(), limits.end());
  std::size_t placed = 0;
  for (const auto limit : limits)
    placed += placed < needs.size() && needs[placed] <= limit ? 1 : 0;
  return placed;
}

}  // namespace troupe::cluster
