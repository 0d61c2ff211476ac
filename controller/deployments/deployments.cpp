#include "controller/deployments/deployments.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>

#include "base/format.h"
#include "base/text.h"
#include "base/xxh64.h"
#include "controller/deployments/device_kinds.h"
#include "controller/mesh/placement.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/done.h"

namespace troupe::cluster {
namespace {

constexpr control::Milliseconds kLoadDeadline{900'000};
constexpr control::Milliseconds kEndDeadline{20'000};
/// Deadline where the end of an epoch stands behind tasks of others' jobs.
constexpr control::Milliseconds kBusyEndDeadline{900'000};

}  // namespace

std::uint64_t Deployment::kind() const {
  auto text = fmt::format("{}\n{}\n{} {} {}", model.folder, model.fingerprint, to_string(dtype),
                          to_string(weight_dtype), to_string(offload));
  for (const auto& [axis, degree] : mesh::kSplitAxes)
    text += fmt::format(" {}", degrees.*degree);
  for (const auto& stage : stages)
    text += fmt::format(" {}", stage.last_block);
  Xxh64 hash;
  hash.update(text.data(), text.size());
  return hash.digest();
}

std::size_t Deployment::most_jobs(std::size_t most) const {
  for (std::size_t rank = 0; rank < needs.size(); ++rank)
    if (needs[rank].second > 0 && seconds.at(rank) == 0) return std::min<std::size_t>(most, 1);
  return most;
}

std::uint64_t Deployment::weight_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& holding : holdings)
    sum += holding.weight_bytes;
  return sum;
}

Deployments::Ptr Deployments::get(std::uint64_t id) const {
  const auto found = deployments_.find(id);
  return found == deployments_.end() ? nullptr : found->second;
}

bool Deployments::preparing(ActorId id) const {
  const auto all = at(id);
  return std::any_of(all.begin(), all.end(), [&](const Ptr& one) { return preparing(id, *one); });
}

bool Deployments::preparing(ActorId id, const Deployment& deployment) const {
  const Actor& actor = members_.at(id);
  const auto part = actor.parts.find(deployment.id);
  if (part == actor.parts.end() || deployment.state != Deployment::State::preparing) return false;
  const auto& holding = deployment.holdings.at(part->second);
  return deployment.connecting ||
         (holding.asked == actor.incarnation && holding.loaded != actor.incarnation);
}

bool Deployments::matches(const Deployment& deployment, const Model& model,
                          const plan::Plan& plan) const {
  return deployment.model == model && deployment.dtype == plan.request.dtype &&
         deployment.weight_dtype == plan.request.weight_dtype &&
         deployment.offload == plan.request.offload && deployment.degrees == plan.degrees &&
         deployment.stages == plan.stages && deployment.groups == plan.groups &&
         !is_drained(deployment);
}

Deployments::Ptr Deployments::find(const Model& model, const plan::Plan& plan,
                                   std::size_t max_jobs) const {
  Ptr best;
  const auto needs = needs_of(plan);
  for (const auto& [id, deployment] : deployments_) {
    if (deployment->jobs.size() >= deployment->most_jobs(max_jobs) ||
        !matches(*deployment, model, plan))
      continue;
    if (shares_actors(*deployment) || !evictions(rooms_for(*deployment, needs), id)) continue;
    if (!best || deployment->jobs.size() < best->jobs.size()) best = deployment;
  }
  return best;
}

Deployments::Ptr Deployments::load(const Model& model, const plan::Plan& plan,
                                   std::vector<ActorId> actors) {
  const auto needs = needs_of(plan);
  std::vector<Room> rooms;
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    rooms.push_back(room_of(actors[rank]));
    rooms.back().wanted = needs[rank].total();
    rooms.back().newcomer = true;
  }
  make_room(rooms, 0);
  auto deployment = std::make_shared<Deployment>();
  deployment->id = next_id_++;
  deployment->epoch = next_epoch_++;
  deployment->model = model;
  deployment->dtype = plan.request.dtype;
  deployment->weight_dtype = plan.request.weight_dtype;
  deployment->offload = plan.request.offload;
  deployment->degrees = plan.degrees;
  deployment->stages = plan.stages;
  deployment->groups = plan.groups;
  deployment->actor_of_rank = std::move(actors);
  deployment->holdings.resize(deployment->actor_of_rank.size());
  deployment->needs = needs;
  deployment->encoders.resize(needs.size());
  for (std::size_t rank = 0; rank < needs.size(); ++rank)
    deployment->seconds.push_back(room_for_second(deployment->actor_of_rank[rank], needs[rank]));
  deployment->last_used = environment_.now();
  deployments_[deployment->id] = deployment;
  for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
    members_.keep_part(deployment->actor_of_rank[rank], deployment->id,
                       static_cast<std::int32_t>(rank));
  }
  environment_.post([this, deployment] { advance(deployment); });
  return deployment;
}

void Deployments::begin_anew(const Ptr& deployment, const std::string& why) {
  if (deployment->state == Deployment::State::gone) return;
  const auto over = deployment->epoch;
  // Before any group was asked for, nothing of the epoch is at the actors; and who loads goes on.
  const bool begun = deployment->state == Deployment::State::ready || deployment->connecting;
  deployment->epoch = next_epoch_++;
  deployment->state = Deployment::State::preparing;
  deployment->connecting = false;
  for (const ActorId id : deployment->actor_of_rank) {
    if (begun && members_.at(id).state == ActorState::ready) end_epoch(id, over, why);
  }
  environment_.post([this, deployment] { advance(deployment); });
}

void Deployments::advance(const Ptr& deployment) {
  if (deployment->state != Deployment::State::preparing) return;
  const bool replaced = fill_places(*deployment);
  // Who has come in has not been told of the groups that the others connect.
  if (replaced && deployment->connecting)
    return begin_anew(deployment, "another actor has taken the place of one that was lost");
  if (!can_be_whole(*deployment))
    return fail(deployment, {wire::FailureCode::lost, why_empty(*deployment)});
  bool whole = true;
  for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
    const Actor& actor = members_.at(deployment->actor_of_rank[rank]);
    const auto& holding = deployment->holdings[rank];
    const bool there =
        actor.state == ActorState::ready && actor.lasting() && actor.leaving_epochs.empty();
    whole = whole && there && holding.loaded == actor.incarnation;
    if (there && holding.asked != actor.incarnation) load_rank(deployment, rank);
    if (deployment->state != Deployment::State::preparing) return;
  }
  if (whole && !deployment->connecting) connect_groups(deployment);
}

void Deployments::load_rank(const Ptr& deployment, std::size_t rank) {
  const auto at = mesh::Mesh(deployment->degrees).coordinates(static_cast<int>(rank));
  const auto& stage = deployment->stages[at.pp];
  const Actor& actor = members_.at(deployment->actor_of_rank[rank]);
  // Another host's copy of the folder has other inodes and times.
  const auto fingerprint = actor.remote ? 0 : deployment->model.fingerprint;
  auto loras = deployment->model.loras;
  for (auto& lora : loras)
    if (actor.remote) lora.fingerprint = 0;
  auto controlnets = deployment->model.controlnets;
  for (auto& net : controlnets)
    if (actor.remote) net.fingerprint = 0;
  // What the place may hold may be less by now.
  for (auto* given_up : {&deployment->encoders, &deployment->seconds}) {
    if (const auto room = room_of(actor.id); room.held() > room.limit) given_up->at(rank) = 0;
  }
  const wire::LoadStage message{.deployment = deployment->id,
                                .model = deployment->model.folder,
                                .fingerprint = fingerprint,
                                .dtype = deployment->dtype,
                                .weight_dtype = deployment->weight_dtype,
                                .offload = deployment->offload,
                                .first_block = stage.first_block,
                                .last_block = stage.last_block,
                                .embeds = at.pp == 0,
                                .projects = at.pp + 1 == deployment->degrees.pp,
                                .tp_rank = at.tp,
                                .tp_degree = deployment->degrees.tp,
                                .loras = std::move(loras),
                                .prompt_cache_bytes = prompt_cache_bytes_,
                                .keeps_both = deployment->seconds[rank] > 0,
                                .controlnets = std::move(controlnets)};
  const auto incarnation = actor.incarnation;
  deployment->holdings[rank] = {.asked = incarnation};
  const auto answer = [this, deployment, rank, incarnation](const control::Reply& reply) {
    auto& holding = deployment->holdings[rank];
    if (deployment->state == Deployment::State::gone || holding.asked != incarnation) return;
    if (!reply.ok()) {
      if (reply.failure().code == wire::FailureCode::lost) return;  // its exit follows
      return fail(deployment,
                  {reply.failure().code, members_.name_of(deployment->actor_of_rank[rank]) + ": " +
                                             reply.failure().what});
    }
    const auto loaded = reply.as<wire::StageLoaded>();
    holding.loaded = incarnation;
    holding.weight_bytes = loaded.weight_bytes;
    deployment->load_seconds = std::max(deployment->load_seconds, loaded.seconds);
    advance(deployment);
  };
  try {
    environment_.request(actor.peer, message, kLoadDeadline, answer);
  } catch (const wire::WireError& error) {
    fail(deployment,
         {wire::FailureCode::internal, std::string("the model cannot be loaded: ") + error.what()});
  }
}

void Deployments::fail(const Ptr& deployment, const wire::Failure& failure) {
  if (deployment->state == Deployment::State::gone) return;
  take_down(deployment, failure.what);
  for (auto* listener : listeners_)
    listener->deployment_failed(deployment, failure);
}

void Deployments::actor_ready(ActorId id) {
  if (const auto own = at(id); !own.empty()) {
    for (const auto& deployment : own)
      advance(deployment);
    return;
  }
  // A spare: somebody may wait for one.
  const auto all = deployments_;
  for (const auto& [key, deployment] : all)
    advance(deployment);
}

void Deployments::actor_gone(ActorId id, const std::string& why) {
  // Who waits for it, or counted on it as a spare.
  const auto all = deployments_;
  for (const auto& [key, deployment] : all) {
    const auto& actors = deployment->actor_of_rank;
    if (std::find(actors.begin(), actors.end(), id) != actors.end()) deployment->gap = why;
  }
  for (const auto& [key, deployment] : all)
    advance(deployment);
}

void Deployments::take_down(const Ptr& deployment, const std::string& why) {
  if (deployments_.erase(deployment->id) == 0) return;
  deployment->state = Deployment::State::gone;
  for (const ActorId id : deployment->actor_of_rank) {
    const Actor& actor = members_.at(id);
    if (!members_.drop_part(id, deployment->id) || actor.state != ActorState::ready) continue;
    end_epoch(id, deployment->epoch, why);
    environment_.send(actor.peer, wire::Unload{deployment->id});
  }
}

void Deployments::end_epoch(ActorId id, std::uint64_t epoch, const std::string& why) {
  const Actor& leaving = members_.at(id);
  members_.leave_epoch(id, epoch);
  const auto answer = [this, id, epoch,
                       incarnation = leaving.incarnation](const control::Reply& reply) {
    const Actor& actor = members_.at(id);
    // Another process by now, or another end.
    if (actor.incarnation != incarnation || !actor.leaving_epochs.contains(epoch)) return;
    const auto code = reply.ok() ? wire::FailureCode::none : reply.failure().code;
    if (code == wire::FailureCode::timeout) {
      for (auto* listener : listeners_)
        listener->actor_stuck(id);
      return;
    }
    if (code == wire::FailureCode::lost) return;  // its exit follows, and a new process
    members_.left_epoch(id, epoch);
    actor_ready(id);
    for (auto* listener : listeners_)
      listener->actor_free(id);
  };
  const auto busy = in_use(id);
  const bool others = busy && busy->epoch != epoch;
  environment_.request(leaving.peer, wire::AbortEpoch{epoch, why},
                       others ? kBusyEndDeadline : kEndDeadline, answer);
}

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

bool Deployments::fill_places(Deployment& deployment) {
  bool replaced = false;
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
      const auto spare = spare_for(deployment, rank);
      if (!spare) continue;
      replace(deployment, rank, *spare);
      replaced = true;
    }
  }
  return replaced;
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
      if (!actor.accepts_jobs() || !actor.jobs.empty() || actor.device_kind() != kind) continue;
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
  const Actor& old = members_.at(deployment.actor_of_rank[rank]);
  if (old.state == ActorState::ready) environment_.send(old.peer, wire::Unload{deployment.id});
  members_.drop_part(old.id, deployment.id);
  members_.keep_part(by, deployment.id, static_cast<std::int32_t>(rank));
  for (const auto& [job, bytes] : deployment.jobs)
    members_.replace(job, old.id, by);
  deployment.actor_of_rank[rank] = by;
  deployment.encoders[rank] = 0;
}

// The communicators of an epoch: all members are told to connect, and it is ready once all have.

namespace {

constexpr control::Milliseconds kConnectDeadline{20'000};
/// Wait before groups are connected again. A failure is most often due to a member that is gone,
/// whose exit is told a moment later.
constexpr double kConnectAgainSeconds = 0.3;
constexpr int kMaxFailedConnects = 3;

}  // namespace

void Deployments::connect_groups(const Ptr& deployment) {
  deployment->connecting = true;
  deployment->connected = 0;
  for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
    wire::ConnectGroups message;
    message.deployment = deployment->id;
    message.epoch = deployment->epoch;
    message.deadline_ms = static_cast<std::uint32_t>(kConnectDeadline.count()) - 1000;
    for (const auto& group : deployment->groups) {
      const auto own = std::find(group.ranks.begin(), group.ranks.end(), static_cast<int>(rank));
      if (own == group.ranks.end()) continue;
      const std::string backend = backend_of(*deployment, group);
      wire::GroupSpec spec{.id = group.id,
                           .name = group.name,
                           .backend = backend,
                           .rank = static_cast<std::int32_t>(own - group.ranks.begin()),
                           .addresses = {}};
      for (const int member : group.ranks) {
        const auto& addresses = members_.at(deployment->actor_of_rank[member]).addresses;
        const auto address = addresses.find(backend);
        spec.addresses.push_back(address == addresses.end() ? "" : address->second);
      }
      message.groups.push_back(std::move(spec));
    }
    const ActorId actor = deployment->actor_of_rank[rank];
    environment_.request(
        members_.at(actor).peer, message, kConnectDeadline,
        [this, deployment, epoch = deployment->epoch, actor](const control::Reply& reply) {
          group_answer(deployment, epoch, actor, reply);
        });
  }
}

std::string Deployments::backend_of(const Deployment& deployment,
                                    const plan::GroupPlan& group) const {
  const auto member = [&](int rank) -> const Actor& {
    return members_.at(deployment.actor_of_rank[rank]);
  };
  const Actor& first = member(group.ranks.front());
  if (first.device_kind() != DeviceKind::cpu) return "nccl";
  const bool one_host = std::all_of(group.ranks.begin(), group.ranks.end(),
                                    [&](int rank) { return member(rank).host == first.host; });
  return one_host ? "shm" : "tcp";
}

void Deployments::group_answer(const Ptr& deployment, std::uint64_t epoch, ActorId actor,
                               const control::Reply& reply) {
  if (deployment->state != Deployment::State::preparing || deployment->epoch != epoch) return;
  if (!reply.ok()) {
    const wire::Failure failure{reply.failure().code,
                                members_.name_of(actor) + ": " + reply.failure().what};
    environment_.after(kConnectAgainSeconds, [this, deployment, epoch, failure] {
      if (deployment->state != Deployment::State::preparing || deployment->epoch != epoch) return;
      if (++deployment->failed_connects >= kMaxFailedConnects) return fail(deployment, failure);
      begin_anew(deployment, failure.what);
    });
    return;
  }
  if (++deployment->connected < deployment->actor_of_rank.size()) return;
  deployment->connecting = false;
  deployment->failed_connects = 0;
  deployment->state = Deployment::State::ready;
  for (auto* listener : listeners_)
    listener->deployment_ready(deployment);
}

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

bool Deployments::all_ready(const Deployment& deployment) const {
  return std::ranges::all_of(deployment.actor_of_rank, [&](ActorId id) {
    return members_.at(id).state == ActorState::ready;
  });
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
                              .weights = weights + deployment->seconds.at(rank),
                              .working = deployment->bytes_at(rank) - weights,
                              .encoders = deployment->encoders.at(rank),
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
  for (const auto id : gone->deployments)
    take_down(get(id), "its memory is needed");
  give_up(gone->encoders);
}

void Deployments::let_encoders_stay(Deployment& deployment, std::size_t rank, std::uint64_t bytes) {
  auto room = room_of(deployment.actor_of_rank[rank]);
  if (bytes == 0 || room.limit == kNoLimit) return;
  room.wanted = bytes;
  const auto gone = evictions({room}, deployment.id);
  if (!gone || !gone->deployments.empty()) return;
  give_up(gone->encoders);
  deployment.encoders[rank] = bytes;
}

std::uint64_t Deployments::room_for_second(ActorId id, const MemoryNeed& need) {
  auto room = room_of(id);
  room.wanted = need.total() + need.second;
  const auto gone = evictions({room});
  if (need.second == 0 || !gone || !gone->deployments.empty()) return 0;
  give_up(gone->encoders);
  return need.second;
}

void Deployments::give_up(const std::vector<Evictions::Encoders>& encoders) {
  for (const auto& [id, number] : encoders) {
    const Actor& actor = members_.at(id);
    get(number)->encoders.at(static_cast<std::size_t>(actor.parts.at(number))) = 0;
    if (actor.state == ActorState::ready)
      environment_.send(actor.peer, wire::Unload{number, /*encoders_alone=*/true});
  }
}

std::optional<std::vector<ActorId>> Deployments::choose_actors(const plan::Plan& plan,
                                                               Beside beside) const {
  const auto needs = needs_of(plan);
  std::uint64_t largest = 0;
  for (const auto& need : needs)
    largest = std::max(largest, need.total());
  auto idle = members_.idle();
  if (beside == Beside::nothing)
    std::erase_if(idle, [&](ActorId id) { return !members_.at(id).parts.empty(); });
  // Those where nothing has to go, then those that were used longest ago.
  std::map<ActorId, std::pair<int, double>> order;
  for (const ActorId id : idle) {
    auto room = room_of(id);
    room.wanted = largest;
    room.newcomer = true;
    const auto all = at(id);
    const auto gone = evictions({room});
    const int loss = !gone || !gone->deployments.empty() ? 2 : gone->encoders.empty() ? 0 : 1;
    order[id] = {loss, all.empty() ? -1.0 : all.back()->last_used};
  }
  if (beside == Beside::keep_loaded)
    std::erase_if(idle, [&](ActorId id) { return order.at(id).first > 0; });
  std::stable_sort(idle.begin(), idle.end(),
                   [&](ActorId a, ActorId b) { return order.at(a) < order.at(b); });
  std::map<DeviceKind, std::vector<ActorId>> by_kind;
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
  std::map<DeviceKind, int> roomy;  // by kind
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
  return cluster::shortage(capacity_of(members_), plan);
}

void Deployments::enter(const Ptr& deployment, std::uint64_t job, const plan::Plan& plan) {
  const auto needs = needs_of(plan);
  make_room(rooms_for(*deployment, needs), deployment->id);
  auto& own = deployment->jobs[job];
  for (const auto& need : needs)
    own.push_back(need.working);
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    if (deployment->encoders[rank] == 0) let_encoders_stay(*deployment, rank, needs[rank].encoders);
  }
  deployment->last_used = environment_.now();
  members_.give(job, deployment->actor_of_rank);
}

void Deployments::leave(const Ptr& deployment, std::uint64_t job) {
  if (deployment) {
    deployment->jobs.erase(job);
    deployment->last_used = environment_.now();
  }
  members_.take_back(job);
}

std::string Deployments::waits_for(const Model& model, const plan::Plan& plan,
                                   std::size_t max_jobs) const {
  const auto needs = needs_of(plan);
  for (const auto& [id, deployment] : deployments_) {
    if (!matches(*deployment, model, plan) || shares_actors(*deployment)) continue;
    const auto most = deployment->most_jobs(max_jobs);
    if (deployment->jobs.size() >= most)
      return most == 1 ? std::string("waits for the job on its actors to end")
                       : fmt::format("waits for one of {} jobs on its actors to end", most);
    const auto rooms = rooms_for(*deployment, needs);
    for (const auto& room : rooms) {
      if (evictions({room}, id)) continue;
      return "waits for memory: " + bytes_text(room.wanted) + " at " +
             members_.name_of(room.actor) + ", where " + bytes_text(room.held() - room.encoders()) +
             " of " + bytes_text(room.limit) + " are in use";
    }
  }
  const auto world = plan.degrees.world();
  struct Kind {
    int idle = 0;
    int all = 0;
  };
  std::map<DeviceKind, Kind> kinds;
  for (const auto& [id, actor] : members_.all()) {
    auto& kind = kinds[actor.device_kind()];
    ++kind.all;
    kind.idle += members_.is_idle(id) ? 1 : 0;
  }
  std::string counts;
  int most = 0;
  for (const auto& [name, kind] : kinds) {
    most = std::max(most, kind.idle);
    counts += fmt::format("{}{} of {}{}", counts.empty() ? "" : ", ", kind.idle, kind.all,
                          kinds.size() > 1 ? " on " + to_string(name) : "");
  }
  return "waits for " + counted(world, "idle actor") + (kinds.size() > 1 ? " of one kind" : "") +
         (most >= world ? " that hold it: " : ": ") + counts + " are";
}

}  // namespace troupe::cluster
