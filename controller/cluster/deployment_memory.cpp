#include <algorithm>
#include <set>
#include <tuple>

#include "controller/cluster/deployments.h"
#include "controller/cluster/device_fit.h"
#include "models/spec/counted.h"

namespace troupe::cluster {
namespace {

bool first_used(const Deployments::Ptr& a, const Deployments::Ptr& b) {
  const auto key = [](const Deployment& one) {
    return std::tuple(!one.jobs.empty(), one.last_used, one.id);
  };
  return key(*a) < key(*b);
}

}  // namespace

std::uint64_t Deployment::bytes_at(std::size_t rank) const {
  std::uint64_t sum = needs.at(rank).weights;
  for (const auto& [job, bytes] : jobs)
    sum += bytes.at(rank);
  return sum;
}

std::vector<Deployments::Ptr> Deployments::at(ActorId id) const {
  std::vector<Ptr> all;
  for (const auto& [number, rank] : members_.at(id).parts) {
    if (const auto deployment = get(number)) all.push_back(deployment);
  }
  std::sort(all.begin(), all.end(), first_used);
  return all;
}

Deployments::Ptr Deployments::in_use(ActorId id) const {
  const auto all = at(id);
  return all.empty() || all.back()->jobs.empty() ? nullptr : all.back();
}

bool Deployments::shares_actors(const Deployment& deployment) const {
  return std::any_of(
      deployment.actor_of_rank.begin(), deployment.actor_of_rank.end(), [&](ActorId id) {
        const auto& jobs = members_.at(id).jobs;
        return std::any_of(jobs.begin(), jobs.end(),
                           [&](std::uint64_t job) { return !deployment.jobs.contains(job); });
      });
}

std::uint64_t Deployments::held(ActorId id) const {
  return room_of(id).held();
}

bool Deployments::suits(const Deployment& deployment, std::size_t rank, ActorId id) const {
  return deployment.bytes_at(rank) <= members_.at(id).may_hold();
}

Room Deployments::room_of(ActorId id) const {
  const Actor& actor = members_.at(id);
  Room room;
  room.actor = id;
  room.limit = actor.may_hold();
  for (const auto& deployment : at(id)) {
    const auto rank = static_cast<std::size_t>(actor.parts.at(deployment->id));
    const auto weights = deployment->needs.at(rank).weights;
    room.residents.push_back({.deployment = deployment->id,
                              .weights = weights,
                              .working = deployment->bytes_at(rank) - weights,
                              .last_used = deployment->last_used,
                              .in_use = !deployment->jobs.empty()});
  }
  return room;
}

std::vector<Room> Deployments::rooms_for(const Deployment& deployment,
                                         const std::vector<MemoryNeed>& needs) const {
  std::vector<Room> rooms;
  for (std::size_t rank = 0; rank < deployment.actor_of_rank.size(); ++rank) {
    rooms.push_back(room_of(deployment.actor_of_rank[rank]));
    rooms.back().wanted = needs.at(rank).working;
  }
  return rooms;
}

void Deployments::make_room(const std::vector<Room>& rooms, std::uint64_t keep) {
  auto left = rooms;
  std::set<std::uint64_t> unfinished;
  for (auto& room : left) {
    std::erase_if(room.residents, [&](const Resident& one) {
      // It would connect its groups in the midst of others' jobs.
      const bool stays = one.in_use || one.deployment == keep ||
                         get(one.deployment)->state == Deployment::State::ready;
      if (!stays) unfinished.insert(one.deployment);
      return !stays;
    });
  }
  for (const auto id : unfinished)
    take_down(get(id), "its actors are needed");
  const auto gone = evictions(left, keep);
  if (!gone) return;
  for (const auto id : *gone)
    take_down(get(id), "its memory is needed");
}

std::optional<std::vector<ActorId>> Deployments::choose_actors(const plan::Plan& plan,
                                                               bool beside) const {
  const auto needs = needs_of(plan);
  std::uint64_t largest = 0;
  for (const auto& need : needs)
    largest = std::max(largest, need.total());
  auto idle = members_.idle();
  if (!beside) std::erase_if(idle, [&](ActorId id) { return !members_.at(id).parts.empty(); });
  // Those where nothing has to go, then those that were used longest ago.
  std::map<ActorId, std::pair<bool, double>> order;
  for (const ActorId id : idle) {
    auto room = room_of(id);
    room.wanted = largest;
    room.newcomer = true;
    const auto all = at(id);
    const auto gone = evictions({room});
    order[id] = {!gone || !gone->empty(), all.empty() ? -1.0 : all.back()->last_used};
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [&](ActorId a, ActorId b) { return order.at(a) < order.at(b); });
  std::map<std::string, std::vector<ActorId>> by_kind;
  for (const ActorId id : idle)
    by_kind[members_.at(id).device_kind()].push_back(id);
  for (const auto& [kind, actors] : by_kind) {
    if (!has_products_of(kind, plan.request.weight_dtype)) continue;
    std::vector<ActorId> roomy;
    std::vector<std::pair<ActorId, std::uint64_t>> limits;
    for (const ActorId id : actors) {
      const auto limit = members_.at(id).may_hold();
      limits.emplace_back(id, limit);
      if (largest <= limit) roomy.push_back(id);
    }
    if (roomy.size() >= needs.size()) return gather(roomy, plan.degrees);
    if (auto chosen = by_memory(needs, std::move(limits))) return chosen;
  }
  return std::nullopt;
}

int Deployments::places_for(const plan::Plan& plan) const {
  std::uint64_t largest = 0;
  for (const auto& need : needs_of(plan))
    largest = std::max(largest, need.total());
  std::map<std::string, int> roomy;  // by kind
  for (const ActorId id : members_.idle()) {
    const Actor& actor = members_.at(id);
    if (largest <= actor.may_hold()) ++roomy[actor.device_kind()];
  }
  int places = 0;
  for (const auto& [kind, count] : roomy) {
    if (has_products_of(kind, plan.request.weight_dtype)) places += count / plan.degrees.world();
  }
  return places;
}

std::optional<Shortage> Deployments::shortage(const plan::Plan& plan) const {
  std::map<std::string, std::vector<std::pair<ActorId, std::uint64_t>>> by_kind;
  for (const auto& [id, actor] : members_.all()) {
    // Also while its next process is still to come.
    if (actor.hires()) by_kind[actor.device_kind()].emplace_back(id, actor.may_hold());
  }
  const auto needs = needs_of(plan);
  std::optional<Shortage> found;
  for (const auto& [kind, limits] : by_kind) {
    if (!has_products_of(kind, plan.request.weight_dtype)) continue;
    std::optional<Shortage> here;
    if (by_memory(needs, limits, &here)) return std::nullopt;
    if (here && (!found || here->limit > found->limit)) found = here;
  }
  return found;
}

void Deployments::enter(const Ptr& deployment, std::uint64_t job, const plan::Plan& plan) {
  const auto needs = needs_of(plan);
  make_room(rooms_for(*deployment, needs), deployment->id);
  auto& own = deployment->jobs[job];
  for (const auto& need : needs)
    own.push_back(need.working);
  deployment->last_used = outside_.now();
  members_.give(job, deployment->actor_of_rank);
}

void Deployments::leave(const Ptr& deployment, std::uint64_t job) {
  if (deployment) {
    deployment->jobs.erase(job);
    deployment->last_used = outside_.now();
  }
  members_.take_back(job);
}

std::string Deployments::waits_for(const Model& model, const plan::Plan& plan,
                                   std::size_t max_jobs) const {
  const auto needs = needs_of(plan);
  for (const auto& [id, deployment] : deployments_) {
    if (!matches(*deployment, model, plan) || shares_actors(*deployment)) continue;
    if (deployment->jobs.size() >= max_jobs)
      return max_jobs == 1
                 ? std::string("waits for the job on its actors to end")
                 : "waits for one of " + std::to_string(max_jobs) + " jobs on its actors to end";
    const auto rooms = rooms_for(*deployment, needs);
    for (const auto& room : rooms) {
      if (evictions({room}, id)) continue;
      return "waits for memory: " + bytes_text(room.wanted) + " at " +
             members_.name_of(room.actor) + ", where " + bytes_text(room.held()) + " of " +
             bytes_text(room.limit) + " are in use";
    }
  }
  const auto world = plan.degrees.world();
  struct Kind {
    int idle = 0;
    int all = 0;
  };
  std::map<std::string, Kind> kinds;
  for (const auto& [id, actor] : members_.all()) {
    auto& kind = kinds[actor.device_kind()];
    ++kind.all;
    kind.idle += members_.is_idle(id) ? 1 : 0;
  }
  std::string counts;
  int most = 0;
  for (const auto& [name, kind] : kinds) {
    most = std::max(most, kind.idle);
    counts += (counts.empty() ? "" : ", ") + std::to_string(kind.idle) + " of " +
              std::to_string(kind.all) + (kinds.size() > 1 ? " on " + name : "");
  }
  return "waits for " + spec::counted(world, "idle actor") +
         (kinds.size() > 1 ? " of one kind" : "") + (most >= world ? " that hold it: " : ": ") +
         counts + " are";
}

}  // namespace troupe::cluster
