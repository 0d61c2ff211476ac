#include <algorithm>
#include <memory>

#include "controller/jobs/run.h"
#include "transport/wire/session.h"

// Failures that only say that a peer is gone. How it ended is told by the end of its process, which
// may be noticed later than the connections that it had.

namespace troupe::jobs {
namespace {

/// Within this, in seconds, a living actor says what it has met itself; and so often it is looked
/// whether who has lost its link has ended.
constexpr double kCauseDelay = 0.3;
/// Who is asked for a sign of life and gives none until then hangs. Longer than the silence after
/// which a link is lost (docs/failures.md).
constexpr control::Milliseconds kRollDeadline{8000};

}  // namespace

void JobRunner::fail_later(Run& run, wire::Failure failure) {
  if (run.collateral) return;
  run.collateral = std::move(failure);
  wait_for_cause(run.job, run.life);
}

void JobRunner::wait_for_cause(JobId id, std::uint64_t life) {
  tools_.environment.after(kCauseDelay, [this, id, life] {
    const Run* run = find(id, life);
    if (!run || !run->collateral) return;
    // Who has lost its link is dying, or will be killed: the end of its process says how.
    if (!all_ready(*run->deployment)) return wait_for_cause(id, life);
    call_roll(*run);
  });
}

void JobRunner::call_roll(const Run& run) {
  struct Roll {
    std::size_t left = 0;
    bool lost = false;
  };
  const auto& actors = run.deployment->actor_of_rank;
  const auto roll = std::make_shared<Roll>(Roll{.left = actors.size()});
  // A process that dies has no thread left when its peers see their connections break.
  const auto answered = [this, roll, id = run.job, life = run.life](const control::Reply& reply) {
    if (!reply && reply.failure().code == wire::FailureCode::lost) roll->lost = true;
    if (--roll->left > 0) return;
    const Run* now = find(id, life);
    if (!now || !now->collateral) return;
    if (roll->lost || !all_ready(*now->deployment)) return wait_for_cause(id, life);
    end_epoch(now->deployment, wire::Failure(*now->collateral), id);
  };
  for (const auto actor : actors)
    tools_.environment.request(tools_.members.at(actor).peer, wire::Ping{}, kRollDeadline,
                               answered);
}

bool JobRunner::all_ready(const cluster::Deployment& deployment) const {
  const auto& actors = deployment.actor_of_rank;
  return std::all_of(actors.begin(), actors.end(), [&](auto id) {
    return tools_.members.at(id).state == cluster::ActorState::ready;
  });
}

}  // namespace troupe::jobs
