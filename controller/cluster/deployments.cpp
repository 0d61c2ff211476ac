#include "controller/cluster/deployments.h"

#include <algorithm>

#include "transport/wire/actor_messages.h"
#include "transport/wire/done.h"

namespace troupe::cluster {
namespace {

constexpr control::Milliseconds kLoadDeadline{900'000};
constexpr control::Milliseconds kConnectDeadline{20'000};
constexpr control::Milliseconds kTakeDownDeadline{20'000};

}  // namespace

/// A deployment on its way: how many answers are still to come. Over with the last one, or with the
/// first failure.
struct Deployments::Loading {
  std::shared_ptr<Deployment> deployment;
  OnReady on_ready;
  std::size_t waiting_for = 0;
  std::optional<wire::Failure> failure;
  bool over = false;
};

std::shared_ptr<Deployment> Deployments::get(std::uint64_t id) const {
  const auto found = deployments_.find(id);
  return found == deployments_.end() ? nullptr : found->second;
}

std::shared_ptr<Deployment> Deployments::find_idle(const Model& model,
                                                   const plan::Plan& plan) const {
  for (const auto& [id, deployment] : deployments_) {
    const bool fits = deployment->ready && deployment->model == model &&
                      deployment->dtype == plan.request.dtype &&
                      deployment->degrees == plan.degrees && deployment->stages == plan.stages &&
                      deployment->groups == plan.groups;
    const auto idle = [&](ActorId id) {
      const Actor& actor = members_.at(id);
      return actor.state == ActorState::ready && actor.job == 0 &&
             actor.deployment == deployment->id;
    };
    if (fits &&
        std::all_of(deployment->actor_of_rank.begin(), deployment->actor_of_rank.end(), idle)) {
      return deployment;
    }
  }
  return nullptr;
}

std::optional<std::vector<ActorId>> Deployments::choose_actors(int world) const {
  auto idle = members_.idle();
  std::stable_partition(idle.begin(), idle.end(),
                        [&](ActorId id) { return members_.at(id).deployment == 0; });
  if (static_cast<int>(idle.size()) < world) return std::nullopt;
  idle.resize(world);
  std::sort(idle.begin(), idle.end());
  return idle;
}

std::shared_ptr<Deployment> Deployments::load(const Model& model, const plan::Plan& plan,
                                              std::vector<ActorId> actors, OnReady on_ready) {
  for (const ActorId actor : actors) {
    if (const auto old = get(members_.at(actor).deployment))
      take_down(old, "its actors are needed");
  }
  auto deployment = std::make_shared<Deployment>();
  deployment->id = next_id_++;
  deployment->epoch = next_epoch_++;
  deployment->model = model;
  deployment->dtype = plan.request.dtype;
  deployment->degrees = plan.degrees;
  deployment->stages = plan.stages;
  deployment->groups = plan.groups;
  deployment->actor_of_rank = std::move(actors);
  deployments_[deployment->id] = deployment;
  for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
    Actor& actor = members_.at(deployment->actor_of_rank[rank]);
    actor.deployment = deployment->id;
    actor.rank = static_cast<std::int32_t>(rank);
  }
  auto loading = std::make_shared<Loading>(
      Loading{.deployment = deployment, .on_ready = std::move(on_ready), .failure = {}});
  try {
    load_stages(loading);
  } catch (...) {
    loading->over = true;
    take_down(deployment, "it could not be loaded");
    throw;
  }
  return deployment;
}

void Deployments::load_stages(const std::shared_ptr<Loading>& loading) {
  const auto& deployment = *loading->deployment;
  const mesh::Mesh mesh(deployment.degrees);
  loading->waiting_for = deployment.actor_of_rank.size();
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const auto at = mesh.coordinates(rank);
    const auto& stage = deployment.stages[at.pp];
    const bool last = at.pp + 1 == deployment.degrees.pp;
    const wire::LoadStage message{.deployment = deployment.id,
                                  .model = deployment.model.folder,
                                  .fingerprint = deployment.model.fingerprint,
                                  .dtype = deployment.dtype,
                                  .first_block = stage.first_block,
                                  .last_block = stage.last_block,
                                  .embeds = at.pp == 0,
                                  .projects = last,
                                  .tp_rank = at.tp,
                                  .tp_degree = deployment.degrees.tp};
    const ActorId actor = deployment.actor_of_rank[rank];
    server_.request(members_.at(actor).peer, message, kLoadDeadline,
                    [this, loading, actor](const control::Reply& reply) {
                      if (reply.ok()) {
                        const auto loaded = reply.as<wire::StageLoaded>();
                        loading->deployment->weight_bytes += loaded.weight_bytes;
                        loading->deployment->load_seconds =
                            std::max(loading->deployment->load_seconds, loaded.seconds);
                      }
                      count(loading, actor, reply, &Deployments::connect_groups);
                    });
  }
}

void Deployments::connect_groups(const std::shared_ptr<Loading>& loading) {
  const auto& deployment = *loading->deployment;
  const std::string backend =
      members_.at(deployment.actor_of_rank[0]).device == "cpu" ? "shm" : "nccl";
  loading->waiting_for = deployment.actor_of_rank.size();
  for (std::size_t rank = 0; rank < deployment.actor_of_rank.size(); ++rank) {
    wire::ConnectGroups message;
    message.deployment = deployment.id;
    message.epoch = deployment.epoch;
    message.backend = backend;
    message.deadline_ms = static_cast<std::uint32_t>(kConnectDeadline.count()) - 1000;
    for (const auto& group : deployment.groups) {
      const auto own = std::find(group.ranks.begin(), group.ranks.end(), static_cast<int>(rank));
      if (own == group.ranks.end()) continue;
      wire::GroupSpec spec{.id = group.id,
                           .name = group.name,
                           .rank = static_cast<std::int32_t>(own - group.ranks.begin()),
                           .addresses = {}};
      for (const int member : group.ranks) {
        spec.addresses.push_back(members_.at(deployment.actor_of_rank[member]).addresses[backend]);
      }
      message.groups.push_back(std::move(spec));
    }
    const ActorId actor = deployment.actor_of_rank[rank];
    server_.request(members_.at(actor).peer, message, kConnectDeadline,
                    [this, loading, actor](const control::Reply& reply) {
                      count(loading, actor, reply, &Deployments::finish);
                    });
  }
}

void Deployments::count(const std::shared_ptr<Loading>& loading, ActorId actor,
                        const control::Reply& reply,
                        void (Deployments::*next)(const std::shared_ptr<Loading>&)) {
  if (loading->over) return;
  if (!get(loading->deployment->id)) {
    loading->failure = {wire::FailureCode::cancelled, "the deployment was taken down"};
  } else if (!reply.ok()) {
    loading->failure = {reply.failure().code,
                        "actor " + std::to_string(actor) + ": " + reply.failure().what};
  }
  if (loading->failure) return finish(loading);
  if (--loading->waiting_for == 0) (this->*next)(loading);
}

void Deployments::finish(const std::shared_ptr<Loading>& loading) {
  const auto deployment = loading->deployment;
  loading->over = true;
  if (loading->failure) {
    take_down(deployment, loading->failure->what);
  } else {
    deployment->ready = true;
  }
  loading->on_ready(deployment, loading->failure);
}

void Deployments::take_down(const std::shared_ptr<Deployment>& deployment, const std::string& why) {
  if (deployments_.erase(deployment->id) == 0) return;
  deployment->ready = false;
  for (const ActorId id : deployment->actor_of_rank) {
    Actor& actor = members_.at(id);
    if (actor.deployment != deployment->id) continue;
    actor.deployment = 0;
    actor.rank = -1;
    if (actor.state != ActorState::ready) continue;
    end_epoch(id, deployment->epoch, why);
    server_.send(actor.peer, wire::Unload{deployment->id});
  }
}

void Deployments::end_epoch(ActorId id, std::uint64_t epoch, const std::string& why) {
  Actor& leaving = members_.at(id);
  leaving.leaving_epoch = epoch;
  server_.request(leaving.peer, wire::AbortEpoch{epoch, why}, kTakeDownDeadline,
                  [this, id, epoch](const control::Reply& reply) {
                    Actor& actor = members_.at(id);
                    if (actor.leaving_epoch != epoch)
                      return;  // another process by now, or another end
                    const auto code = reply.ok() ? wire::FailureCode::none : reply.failure().code;
                    if (code == wire::FailureCode::timeout) return events_.on_stuck(id);
                    if (code == wire::FailureCode::lost)
                      return;  // its exit follows, and a new process
                    actor.leaving_epoch = 0;
                    events_.on_free();
                  });
}

}  // namespace troupe::cluster
