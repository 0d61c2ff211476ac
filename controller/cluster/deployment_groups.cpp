#include <algorithm>

#include "controller/cluster/deployments.h"
#include "transport/wire/actor_messages.h"

// The communicators of an epoch: all members are told to connect, and it is ready once all have.

namespace troupe::cluster {
namespace {

constexpr control::Milliseconds kConnectDeadline{20'000};
/// What keeps groups from being connected is most often a member that is gone: its exit is told a
/// moment later.
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
      for (const int member : group.ranks)
        spec.addresses.push_back(members_.at(deployment->actor_of_rank[member]).addresses[backend]);
      message.groups.push_back(std::move(spec));
    }
    const ActorId actor = deployment->actor_of_rank[rank];
    outside_.request(
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
  if (first.device_kind() != "cpu") return "nccl";
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
    outside_.after(kConnectAgainSeconds, [this, deployment, epoch, failure] {
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
  events_.on_ready(deployment);
}

}  // namespace troupe::cluster
