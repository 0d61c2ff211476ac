#include <boost/asio/post.hpp>

#include "controller/jobs/run.h"

namespace troupe::jobs {
namespace {

/// How long a failure that only names a peer waits for the one that names the cause.
constexpr std::chrono::milliseconds kCauseDelay{300};
/// Bytes of a cause that are kept: it must fit into messages beside other things.
constexpr std::size_t kLongestCause = 16'000;

}  // namespace

void JobRunner::task_failed(cluster::ActorId actor, const wire::TaskFailed& failed) {
  Run* run = find(failed.job);
  if (!run || !run->deployment || run->deployment->epoch != failed.epoch) return;
  std::string where = "actor " + std::to_string(actor);
  if (failed.begin) {
    where += ", begin";
  } else if (dispatcher_.has(failed.job) &&
             failed.task < dispatcher_.graph(failed.job).tasks.size()) {
    where += ", " + schedule::describe(dispatcher_.task(failed.job, failed.task));
  }
  wire::Failure failure{failed.failure.code, where + ": " + failed.failure.what};
  if (failed.collateral) {
    fail_later(failed.job, std::move(failure));
  } else {
    fail(failed.job, std::move(failure));
  }
}

void JobRunner::fail_with_cause(JobId id, wire::Failure failure) {
  if (failure.code == wire::FailureCode::lost) {
    fail_later(id, std::move(failure));
  } else {
    fail(id, std::move(failure));
  }
}

void JobRunner::fail_later(JobId id, wire::Failure failure) {
  Run* run = find(id);
  if (!run || run->collateral) return;
  run->collateral = std::move(failure);
  run->cause_timer.expires_after(kCauseDelay);
  run->cause_timer.async_wait([this, id](const boost::system::error_code& error) {
    Run* waiting = error ? nullptr : find(id);
    if (waiting) fail(id, *waiting->collateral);
  });
}

void JobRunner::fail_soon(JobId id, wire::Failure failure) {
  boost::asio::post(tools_.io, [this, id, failure = std::move(failure)] { fail(id, failure); });
}

void JobRunner::actor_lost(cluster::ActorId actor, const std::string& cause) {
  const auto& member = tools_.members.at(actor);
  std::string what =
      "actor " + std::to_string(actor) + " (pid " + std::to_string(member.pid) + ") " + cause;
  // What it kept is gone, also when no job needs it now: the next one must not find it there.
  const auto kept = tools_.deployments.get(member.deployment);
  if (const JobEntry* job = member.job == 0 ? nullptr : tools_.table.find(member.job)) {
    const auto task = doing(actor);
    what +=
        ", during " + (task.empty() ? "job " + std::to_string(job->id) + " " + job->phase : task);
    fail(job->id, {wire::FailureCode::lost, what});
  }
  if (kept) tools_.deployments.take_down(kept, what);
}

std::string JobRunner::doing(cluster::ActorId actor) const {
  const auto current = dispatcher_.current(actor);
  if (!current) return {};
  return "job " + std::to_string(current->first) + " " +
         schedule::describe(dispatcher_.task(current->first, current->second));
}

void JobRunner::cancel(JobId id, const std::string& why) {
  JobEntry* job = tools_.table.find(id);
  if (!job || wire::is_terminal(job->state) || job->cancel_asked) return;
  job->cancel_asked = true;
  job->failure = {wire::FailureCode::cancelled, why};
  if (job->state == wire::JobState::queued) {
    finish(id, wire::JobState::cancelled, job->failure);
    return;
  }
  if (const Run* run = find(id); run && !run->begun) {
    if (const auto deployment = run->deployment) tools_.deployments.take_down(deployment, why);
    finish(id, wire::JobState::cancelled, job->failure);
    return;
  }
  dispatcher_.cancel(id);
  maybe_end(id);
}

void JobRunner::fail(JobId id, wire::Failure failure) {
  Run* run = find(id);
  if (!run) return;
  // The epoch ends with the failure: what is on its way between the actors belongs to nobody any
  // more.
  const auto deployment = run->deployment;
  if (deployment) tools_.deployments.take_down(deployment, failure.what);
  finish(id, wire::JobState::failed, std::move(failure));
}

void JobRunner::finish(JobId id, wire::JobState state, wire::Failure failure) {
  if (failure.what.size() > kLongestCause) failure.what.resize(kLongestCause);
  if (!tools_.table.finish(id, state, std::move(failure), tools_.now())) return;
  dispatcher_.remove(id);
  JobEntry& job = *tools_.table.find(id);
  if (Run* run = find(id)) forget_blobs(*run, job, state);
  runs_.erase(id);
  for (auto& [actor_id, actor] : tools_.members.all()) {
    if (actor.job == id) actor.job = 0;
  }
  forget_interim(job);
  tools_.on_finished(job);
  for (const auto& gone : tools_.table.expire()) {
    for (const auto& blob : gone.blobs)
      tools_.blobs.remove(blob.id);
  }
  boost::asio::post(tools_.io, [this] { start_queued(); });
}

void JobRunner::fail_unplaceable(const std::string& why) {
  const auto waiting = tools_.table.queue();
  for (const JobId id : waiting) {
    if (tools_.table.find(id)->plan.degrees.world() <=
        static_cast<int>(tools_.members.living_count()))
      continue;
    finish(id, wire::JobState::failed, {wire::FailureCode::lost, why});
  }
}

void JobRunner::fail_all(const wire::Failure& why) {
  const auto waiting = tools_.table.queue();
  for (const JobId id : waiting)
    finish(id, wire::JobState::failed, why);
  while (!runs_.empty())
    fail(runs_.begin()->first, why);
}

}  // namespace troupe::jobs
