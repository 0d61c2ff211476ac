#include <algorithm>

#include "controller/jobs/run.h"

namespace troupe::jobs {
namespace {

/// How long a failure that only names a peer waits for the one that names the cause, in seconds.
constexpr double kCauseDelay = 0.3;
/// Bytes of a cause that are kept: it must fit into messages beside other things.
constexpr std::size_t kLongestCause = 16'000;

}  // namespace

void JobRunner::task_failed(cluster::ActorId actor, const wire::TaskFailed& failed) {
  Run* run = find(failed.job);
  if (!run || !run->begun || run->deployment->epoch != failed.epoch) return;
  std::string where = "actor " + std::to_string(actor);
  if (failed.begin) {
    where += ", begin";
  } else if (dispatcher_.has(failed.job) &&
             failed.task < dispatcher_.graph(failed.job).tasks.size()) {
    where += ", " + schedule::describe(dispatcher_.task(failed.job, failed.task));
  }
  wire::Failure failure{failed.failure.code, where + ": " + failed.failure.what};
  record([&](auto& recorder, auto now_ns) {
    recorder.failed(failed.job, actor, failure.what, now_ns);
  });
  if (failed.collateral) {
    fail_later(*run, std::move(failure));
  } else {
    fail(failed.job, failure);
  }
}

void JobRunner::fail_later(Run& run, wire::Failure failure) {
  if (run.collateral) return;
  run.collateral = std::move(failure);
  tools_.outside.after(kCauseDelay, [this, id = run.job, life = run.life] {
    const Run* waiting = find(id, life);
    if (waiting && waiting->collateral) fail(id, wire::Failure(*waiting->collateral));
  });
}

void JobRunner::fail_soon(JobId id, wire::Failure failure) {
  tools_.outside.post([this, id, failure = std::move(failure)] { fail(id, failure); });
}

void JobRunner::actor_lost(cluster::ActorId actor, const std::string& cause) {
  const auto& member = tools_.members.at(actor);
  std::string what =
      "actor " + std::to_string(actor) + " (pid " + std::to_string(member.pid) + ") " + cause;
  const auto deployment = tools_.deployments.get(member.deployment);
  if (!deployment) return;
  const auto current = dispatcher_.current(actor);
  const auto task = doing(actor);
  if (!task.empty()) {
    what += ", during " + task;
  } else if (!member.jobs.empty()) {
    const JobEntry* job = tools_.table.find(*member.jobs.begin());
    what += ", during job " + std::to_string(job->id) + " " + job->phase;
  }
  end_epoch(deployment, {wire::FailureCode::lost, what},
            current ? std::optional(current->first) : std::nullopt);
}

void JobRunner::end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                          std::optional<JobId> culprit) {
  bool wanted = false;
  for (const JobId id : jobs_on(*deployment)) {
    Run* run = find(id);
    if (run && interrupt(*run, why, !culprit || *culprit == id)) wanted = true;
  }
  const bool whole = std::all_of(
      deployment->actor_of_rank.begin(), deployment->actor_of_rank.end(),
      [&](auto id) { return tools_.members.at(id).state == cluster::ActorState::ready; });
  if (wanted || whole) {
    tools_.deployments.begin_anew(deployment, why.what);
  } else {
    tools_.deployments.take_down(deployment, why.what);
  }
}

bool JobRunner::interrupt(Run& run, const wire::Failure& why, bool counts) {
  JobEntry& job = entry(run);
  if (job.cancel_asked) {
    finish(job.id, wire::JobState::cancelled, job.failure);
    return false;
  }
  if (run.ending) {  // all is here, but the figures of who is gone
    succeed(run);
    return false;
  }
  if (counts && ++run.losses > tools_.options.max_recoveries) {
    auto failure = why;
    if (run.losses > 1)
      failure.what +=
          "; it was the loss number " + std::to_string(run.losses) + " without a step between them";
    finish(job.id, wire::JobState::failed, failure);
    return false;
  }
  if (!run.begun) return true;  // it still waits for its deployment
  record([&](auto& recorder, auto now_ns) {
    recorder.note(recorder::Event::Kind::epoch, job.id, std::nullopt, "its epoch ends: " + why.what,
                  now_ns);
  });
  dispatcher_.remove(job.id);
  forget_blobs(run, job, /*succeeded=*/false);
  ++run.life;
  run.begun = false;
  run.ending = false;
  run.blobs_to_come = 0;
  run.texts_done = 0;
  run.replicas_past.clear();
  run.collateral.reset();
  run.clock = {};
  // Of a stale method the first step from there on fills the K,V store anew.
  auto& request = job.plan.request;
  const int next = job.boundary ? job.boundary->next_step : 0;
  if (job.boundary && next >= job.plan.synchronous_steps && next < request.steps &&
      !std::binary_search(request.refill_steps.begin(), request.refill_steps.end(), next)) {
    request.refill_steps.push_back(next);
    std::sort(request.refill_steps.begin(), request.refill_steps.end());
  }
  job.recoveries.push_back({.cause = why.what, .step = next, .began = tools_.outside.now()});
  job.phase = "recovering";
  run.warnings.push_back("it went on after a loss: " + why.what);
  progress(job, {}, {run.warnings.back()});
  return true;
}

void JobRunner::deployment_failed(const cluster::Deployments::Ptr& deployment,
                                  const wire::Failure& failure) {
  for (const JobId id : jobs_on(*deployment)) {
    Run* run = find(id);
    if (!run || run->deployment != deployment) continue;
    finish(id, wire::JobState::failed, failure);
  }
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
  Run* run = find(id);
  if (run && run->begun) {
    dispatcher_.cancel(id);
    return maybe_end(*run);
  }
  const auto deployment = run ? run->deployment : nullptr;
  finish(id, wire::JobState::cancelled, job->failure);
  if (deployment && jobs_on(*deployment).empty()) tools_.deployments.take_down(deployment, why);
}

void JobRunner::fail(JobId id, const wire::Failure& failure) {
  Run* run = find(id);
  if (!run) return;
  const auto deployment = run->deployment;
  const bool begun = run->begun;
  finish(id, wire::JobState::failed, failure);
  // What is on its way between the actors belongs to nobody any more.
  if (begun) {
    end_epoch(deployment, {failure.code, "job " + std::to_string(id) + " failed: " + failure.what},
              /*culprit=*/id);
  } else if (jobs_on(*deployment).empty()) {
    tools_.deployments.take_down(deployment, failure.what);
  }
}

void JobRunner::finish(JobId id, wire::JobState state, wire::Failure failure) {
  if (failure.what.size() > kLongestCause) failure.what.resize(kLongestCause);
  if (!tools_.table.finish(id, state, std::move(failure), tools_.outside.now())) return;
  dispatcher_.remove(id);
  JobEntry& job = *tools_.table.find(id);
  record([&](auto& recorder, auto now_ns) {
    recorder.ended(id, wire::to_string(state), job.failure.what, now_ns);
  });
  if (state == wire::JobState::failed) tools_.on_failing(job);
  if (Run* run = find(id)) {
    run->deployment->last_used = tools_.outside.now();
    forget_blobs(*run, job, state == wire::JobState::succeeded);
  }
  runs_.erase(id);
  paused_.erase(id);
  tools_.members.take_back(id);
  drop_boundary(job);
  forget_interim(job);
  tools_.on_finished(job);
  for (const auto& gone : tools_.table.expire()) {
    for (const auto& blob : gone.blobs)
      tools_.outside.drop_blob(blob.id);
  }
  tools_.outside.post([this] { start_queued(); });
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
  while (!runs_.empty()) {
    const auto deployment = runs_.begin()->second->deployment;
    finish(runs_.begin()->first, wire::JobState::failed, why);
    tools_.deployments.take_down(deployment, why.what);
  }
}

}  // namespace troupe::jobs
