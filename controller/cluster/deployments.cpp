#include "controller/cluster/deployments.h"

#include <algorithm>

#include "transport/wire/actor_messages.h"
#include "transport/wire/done.h"

namespace troupe::cluster {
namespace {

constexpr control::Milliseconds kLoadDeadline{900'000};
constexpr control::Milliseconds kEndDeadline{20'000};
/// Where the end of an epoch stands behind tasks of others' jobs.
constexpr control::Milliseconds kBusyEndDeadline{900'000};

}  // namespace

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
         deployment.degrees == plan.degrees && deployment.stages == plan.stages &&
         deployment.groups == plan.groups && !is_drained(deployment);
}

Deployments::Ptr Deployments::find(const Model& model, const plan::Plan& plan,
                                   std::size_t max_jobs) const {
  Ptr best;
  const auto needs = needs_of(plan);
  for (const auto& [id, deployment] : deployments_) {
    if (deployment->jobs.size() >= max_jobs || !matches(*deployment, model, plan)) continue;
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
  deployment->degrees = plan.degrees;
  deployment->stages = plan.stages;
  deployment->groups = plan.groups;
  deployment->actor_of_rank = std::move(actors);
  deployment->holdings.resize(deployment->actor_of_rank.size());
  deployment->needs = needs;
  deployment->last_used = outside_.now();
  deployments_[deployment->id] = deployment;
  for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
    members_.at(deployment->actor_of_rank[rank]).parts[deployment->id] =
        static_cast<std::int32_t>(rank);
  }
  outside_.post([this, deployment] { advance(deployment); });
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
  outside_.post([this, deployment] { advance(deployment); });
}

void Deployments::advance(const Ptr& deployment) {
  if (deployment->state != Deployment::State::preparing) return;
  fill_places(*deployment);
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
  const wire::LoadStage message{.deployment = deployment->id,
                                .model = deployment->model.folder,
                                .fingerprint = fingerprint,
                                .dtype = deployment->dtype,
                                .weight_dtype = deployment->weight_dtype,
                                .first_block = stage.first_block,
                                .last_block = stage.last_block,
                                .embeds = at.pp == 0,
                                .projects = at.pp + 1 == deployment->degrees.pp,
                                .tp_rank = at.tp,
                                .tp_degree = deployment->degrees.tp,
                                .loras = std::move(loras)};
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
    outside_.request(actor.peer, message, kLoadDeadline, answer);
  } catch (const wire::WireError& error) {
    fail(deployment,
         {wire::FailureCode::internal, std::string("the model cannot be loaded: ") + error.what()});
  }
}

void Deployments::fail(const Ptr& deployment, const wire::Failure& failure) {
  if (deployment->state == Deployment::State::gone) return;
  take_down(deployment, failure.what);
  events_.on_failed(deployment, failure);
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
    Actor& actor = members_.at(id);
    if (actor.parts.erase(deployment->id) == 0 || actor.state != ActorState::ready) continue;
    end_epoch(id, deployment->epoch, why);
    outside_.send(actor.peer, wire::Unload{deployment->id});
  }
}

void Deployments::end_epoch(ActorId id, std::uint64_t epoch, const std::string& why) {
  Actor& leaving = members_.at(id);
  leaving.leaving_epochs.insert(epoch);
  const auto answer = [this, id, epoch,
                       incarnation = leaving.incarnation](const control::Reply& reply) {
    Actor& actor = members_.at(id);
    // Another process by now, or another end.
    if (actor.incarnation != incarnation || !actor.leaving_epochs.contains(epoch)) return;
    const auto code = reply.ok() ? wire::FailureCode::none : reply.failure().code;
    if (code == wire::FailureCode::timeout) return events_.on_stuck(id);
    if (code == wire::FailureCode::lost) return;  // its exit follows, and a new process
    actor.leaving_epochs.erase(epoch);
    actor_ready(id);
    events_.on_free();
  };
  const auto busy = in_use(id);
  const bool others = busy && busy->epoch != epoch;
  outside_.request(leaving.peer, wire::AbortEpoch{epoch, why},
                   others ? kBusyEndDeadline : kEndDeadline, answer);
}

}  // namespace troupe::cluster
