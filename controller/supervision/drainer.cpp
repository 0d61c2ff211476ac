#include "controller/supervision/drainer.h"

#include <algorithm>

#include "base/format.h"
#include "base/text.h"
#include "controller/jobs/batching.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {
namespace {

constexpr double kEmptyCheckInterval = 0.1;
/// Seconds that an actor may take to leave before it is killed.
constexpr double kLeaveDeadline = 5;

}  // namespace

std::string Drainer::drain(const std::vector<ActorId>& places, bool now) {
  std::set<ActorId> leaving;
  for (const ActorId id : places) {
    if (tools_.members.at(id).state == ActorState::dead) continue;
    tools_.members.drain(id);
    leaving.insert(id);
  }
  draining_.insert(leaving.begin(), leaving.end());
  std::set<std::uint64_t> deployments;
  for (const ActorId id : leaving) {
    if (const auto deployment = tools_.deployments.in_use(id)) deployments.insert(deployment->id);
  }
  std::set<jobs::JobId> moved;
  std::set<jobs::JobId> staying;
  for (const auto number : deployments) {
    const auto deployment = tools_.deployments.get(number);
    if (!deployment) continue;  // it made room for one before it
    std::set<jobs::JobId> jobs;
    for (const auto& [run, bytes] : deployment->jobs) {
      for (const auto job : tools_.runner.jobs_of(run))
        jobs.insert(job);
    }
    const bool moves = now && can_move(*deployment);
    (moves ? moved : staying).insert(jobs.begin(), jobs.end());
    if (moves) move_jobs(deployment);
  }
  std::string text = leaving.empty()
                         ? "no actor is left there"
                         : counted(leaving.size(), "actor") +
                               (leaving.size() == 1 ? " is" : " are") + " being drained";
  const auto list = [](const std::set<jobs::JobId>& jobs) {
    return jobs::jobs_text({jobs.begin(), jobs.end()});
  };
  if (!moved.empty()) text += "; " + list(moved) + " will go on elsewhere";
  if (!staying.empty()) {
    text += "; " + list(staying) + " will end there first";
    if (now)
      text +=
          ": too few idle actors that can hold them, and not --elastic, or too large for those "
          "that are left";
  }
  if (!leaving.empty()) {
    const auto first = tools_.members.name_of(*leaving.begin());
    tools_.runner.places_lost(
        leaving.size() == 1
            ? first + " is drained"
            : fmt::format("{} actors, {} among them, are drained", leaving.size(), first));
  }
  if (!watching_) {
    watching_ = true;
    tools_.environment.post([this] { look(); });
  }
  return text;
}

bool Drainer::can_move(const Deployment& deployment) const {
  const auto kind = tools_.members.at(deployment.actor_of_rank.front()).device_kind();
  std::vector<std::uint64_t> leaving;  // bytes
  for (std::size_t rank = 0; rank < deployment.actor_of_rank.size(); ++rank) {
    if (!tools_.members.at(deployment.actor_of_rank[rank]).accepts_jobs())
      leaving.push_back(deployment.bytes_at(rank));
  }
  std::vector<std::uint64_t> spares;  // limits
  for (const ActorId id : tools_.members.idle()) {
    const Actor& spare = tools_.members.at(id);
    if (spare.device_kind() == kind) spares.push_back(spare.may_hold());
  }
  return most_placed(leaving, spares) == leaving.size() ||
         tools_.runner.all_fit_elsewhere(deployment);
}

void Drainer::move_jobs(const Deployments::Ptr& deployment) {
  const std::string why = "its actors are drained";
  const auto actors = deployment->actor_of_rank;
  for (const ActorId id : actors)
    tools_.members.evict(id);
  tools_.runner.interrupt_jobs(deployment, why);
  for (const ActorId id : actors) {
    const Actor& actor = tools_.members.at(id);
    if (actor.draining && actor.parts.contains(deployment->id))
      tools_.deployments.actor_gone(id, why);
  }
}

void Drainer::look() {
  if (stopped_) return;
  std::erase_if(draining_, [this](ActorId id) { return empty(id); });
  watching_ = !draining_.empty();
  if (watching_) tools_.environment.after(kEmptyCheckInterval, [this] { look(); });
}

bool Drainer::empty(ActorId id) {
  const Actor& actor = tools_.members.at(id);
  const double now = tools_.environment.now();
  if (!actor.draining) {  // the place is in use again
    leaving_.erase(id);
    return true;
  }
  if (actor.state == ActorState::dead) {
    tools_.members.close(id);
    leaving_.erase(id);
    return true;
  }
  if (const auto since = leaving_.find(id); since != leaving_.end()) {
    if (now - since->second > kLeaveDeadline)
      tools_.environment.kill(id, "it was drained, and did not leave");
    return false;
  }
  if (!actor.jobs.empty()) return false;
  for (const auto& deployment : tools_.deployments.at(id))
    tools_.deployments.take_down(deployment, "its actors are drained");
  if (!actor.leaving_epochs.empty()) return false;
  leaving_[id] = now;
  tools_.members.close(id);
  if (actor.state != ActorState::ready || !tools_.environment.send(actor.peer, wire::Shutdown{}))
    tools_.environment.kill(id, "it is drained");
  return false;
}

}  // namespace troupe::cluster
