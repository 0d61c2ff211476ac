#include <algorithm>

#include "controller/jobs/refill.h"
#include "controller/jobs/run.h"

namespace troupe::jobs {
namespace {

/// Tasks of a cancelled job that take longer, in seconds, are left in their midst.
constexpr double kDrainWithin = 0.4;

}  // namespace

void JobRunner::task_failed(cluster::ActorId actor, const wire::TaskFailed& failed) {
  Run* run = find(failed.job);
  if (!run) {
    // The actor does nothing more of that epoch; others may still count on it.
    for (const auto& deployment : tools_.deployments.at(actor)) {
      if (deployment->epoch == failed.epoch)
        end_epoch(deployment, failed.failure, /*culprit=*/failed.job);
    }
    return;
  }
  if (!run->begun || run->deployment->epoch != failed.epoch) return;
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

void JobRunner::fail_soon(JobId id, wire::Failure failure) {
  tools_.environment.post([this, id, failure = std::move(failure)] { fail(id, failure); });
}

void JobRunner::actor_lost(cluster::ActorId actor, const std::string& cause) {
  const auto& member = tools_.members.at(actor);
  std::string what =
      "actor " + std::to_string(actor) + " (pid " + std::to_string(member.pid) + ") " + cause;
  const auto kept = tools_.deployments.at(actor);
  if (kept.empty()) return;
  const auto current = dispatcher_.current(actor);
  const auto task = doing(actor);
  if (!task.empty()) {
    what += ", during " + task;
  } else if (!member.jobs.empty()) {
    const JobEntry* job = tools_.table.find_run(*member.jobs.begin());
    what += ", during " + name_of(job->id) + " " + job->phase;
  }
  for (const auto& deployment : kept) {
    end_epoch(deployment, {wire::FailureCode::lost, what},
              current ? std::optional(current->first) : std::nullopt,
              tools_.deployments.preparing(actor, *deployment));
  }
}

void JobRunner::end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                          std::optional<JobId> culprit, bool while_preparing) {
  bool wanted = false;
  for (const JobId id : jobs_on(*deployment)) {
    Run* run = find(id);
    if (!run) continue;
    // Of several deaths at once the first ends the epoch, and only that one counts.
    const bool counts = run->begun ? !culprit || *culprit == id : while_preparing;
    if (interrupt(*run, why, counts)) wanted = true;
  }
  // What nobody waits for does not connect its groups in the midst of others' jobs.
  const bool kept = all_ready(*deployment) && !tools_.deployments.shares_actors(*deployment);
  if (wanted || kept) {
    tools_.deployments.begin_anew(deployment, why.what);
  } else {
    tools_.deployments.take_down(deployment, why.what);
  }
}

void JobRunner::interrupt_jobs(const cluster::Deployments::Ptr& deployment,
                               const std::string& why) {
  end_epoch(deployment, {wire::FailureCode::lost, why}, /*culprit=*/JobId{0});
}

bool JobRunner::interrupt(Run& run, const wire::Failure& why, bool counts) {
  JobEntry& job = entry(run);
  if (job.cancel_asked) {
    finish(job.id, wire::JobState::cancelled, job.failure);
    return false;
  }
  if (run.ending) {  // all is here, but the figures of who is gone
    run.warnings.push_back("the figures of some ranks are missing: " + why.what);
    succeed(run);
    return false;
  }
  if (counts && ++run.losses > tools_.options.max_recoveries) {
    auto failure = why;
    if (run.losses > 1)
      failure.what +=
          "; it was the loss number " + std::to_string(run.losses) + " without a step between them";
    fail_or_retry(run, failure);
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
  run.told.clear();
  run.blobs_to_come = 0;
  run.texts_done = 0;
  run.replicas_past.clear();
  run.collateral.reset();
  run.clock = {};
  // Of a stale method the first step from there on fills the K,V store anew.
  const int next = job.boundary ? job.boundary->next_step : 0;
  if (job.boundary) add_refill(job.plan, next);
  for (JobEntry* told : entries_of(job))
    told->recoveries.push_back(
        {.cause = why.what, .step = next, .began = tools_.environment.now()});
  job.phase = "recovering";
  run.warnings.push_back("it went on after a loss: " + why.what);
  std::string how = "begins anew";
  if (next > 0) how = std::string("goes on from step ").append(std::to_string(next));
  progress(job, {}, {"it " + how + " after a loss: " + why.what});
  return true;
}

std::string JobRunner::doing(cluster::ActorId actor) const {
  if (const auto current = dispatcher_.current(actor))
    return name_of(current->first) + " " +
           schedule::describe(dispatcher_.task(current->first, current->second));
  for (const auto& deployment : tools_.deployments.at(actor)) {
    if (deployment->jobs.empty() || !tools_.deployments.preparing(actor, *deployment)) continue;
    return name_of(deployment->jobs.begin()->first) +
           (deployment->connecting ? " connecting" : " loading");
  }
  return {};
}

void JobRunner::cancel(JobId id, const std::string& why) {
  JobEntry* job = tools_.table.find(id);
  if (!job || wire::is_terminal(job->state) || job->cancel_asked) return;
  if (in_batch(*job))
    return finish(id, wire::JobState::cancelled, {wire::FailureCode::cancelled, why});
  cancel_run(*job, why);
}

void JobRunner::cancel_run(JobEntry& job, const std::string& why) {
  const JobId id = job.id;
  job.cancel_asked = true;
  job.failure = {wire::FailureCode::cancelled, why};
  Run* run = find(id);
  if (run && run->begun) {
    dispatcher_.cancel(id);
    maybe_end(*run);
    return leave_if_long(id, run->life);
  }
  // While it is loaded for the first time there is nothing to keep.
  const auto deployment = run && run->began == 0 ? run->deployment : nullptr;
  finish(id, wire::JobState::cancelled, job.failure);
  if (deployment && jobs_on(*deployment).empty()) tools_.deployments.take_down(deployment, why);
}

void JobRunner::leave_if_long(JobId id, std::uint64_t life) {
  tools_.environment.after(kDrainWithin, [this, id, life] {
    const Run* run = find(id, life);
    if (!run || !run->begun || run->ending) return;
    const auto deployment = run->deployment;
    // Others would lose their step: they wait for a part, which takes about a second.
    if (jobs_on(*deployment).size() > 1 || tools_.deployments.shares_actors(*deployment))
      return leave_if_long(id, life);
    end_epoch(deployment, wire::Failure(entry(*run).failure), id);
  });
}

void JobRunner::fail(JobId id, const wire::Failure& failure) {
  Run* run = find(id);
  if (!run) {
    // One of a batch fails by itself where it alone cannot be told of.
    const JobEntry* job = tools_.table.find(id);
    if (job && in_batch(*job)) finish(id, wire::JobState::failed, failure);
    return;
  }
  const auto deployment = run->deployment;
  const bool begun = run->begun;
  const JobEntry& job = entry(*run);
  const auto name = name_of(id);
  if (job.cancel_asked) {
    finish(id, wire::JobState::cancelled, wire::Failure(job.failure));
  } else {
    fail_or_retry(*run, failure);
  }
  // What is on its way between the actors belongs to nobody any more.
  if (begun) {
    end_epoch(deployment, {failure.code, name + " failed: " + failure.what},
              /*culprit=*/id);
  } else if (deployment && jobs_on(*deployment).empty()) {
    tools_.deployments.take_down(deployment, failure.what);
  }
}

void JobRunner::finish(JobId id, wire::JobState state, wire::Failure failure) {
  JobEntry* ending = tools_.table.find_run(id);
  if (!ending || wire::is_terminal(ending->state)) return;
  if (!ending->members.empty()) return end_batch(*ending, state, failure);
  const JobId batch = in_batch(*ending) ? ending->batch : 0;
  if (batch != 0) settle(*ending);
  if (failure.what.size() > kLongestCause) failure.what.resize(kLongestCause);
  if (!tools_.table.finish(id, state, std::move(failure), tools_.environment.now())) return;
  dispatcher_.remove(id);
  JobEntry& job = *tools_.table.find(id);
  record([&](auto& recorder, auto now_ns) {
    recorder.ended(id, wire::to_string(state), job.failure.what, now_ns);
  });
  if (state == wire::JobState::failed) tools_.on_failing(job);
  release(id, job, state == wire::JobState::succeeded);
  forget_interim(job);
  tools_.on_finished(job);
  expire();
  if (batch != 0) left_batch(batch);
  tools_.environment.post([this] { start_queued(); });
}

void JobRunner::release(JobId id, JobEntry& job, bool succeeded) {
  if (Run* run = find(id)) {
    tools_.deployments.leave(run->deployment, id);
    forget_blobs(*run, job, succeeded);
  }
  runs_.erase(id);
  paused_.erase(id);
  drop_boundary(job);
}

void JobRunner::expire() {
  for (const auto& gone : tools_.table.expire()) {
    for (const auto& blob : gone.blobs)
      tools_.environment.drop_blob(blob.id);
    tools_.on_forgotten(gone);
  }
}

void JobRunner::cancel_again(JobId id) {
  const JobEntry* job = tools_.table.find(id);
  if (job && job->state == wire::JobState::queued)
    finish(id, wire::JobState::cancelled, wire::Failure(job->failure));
}

void JobRunner::give_up(JobId id, const wire::Failure& why) {
  const JobEntry* job = tools_.table.find(id);
  if (job && job->state == wire::JobState::queued) finish(id, wire::JobState::failed, why);
}

void JobRunner::fail_all(const wire::Failure& why) {
  const auto waiting = tools_.table.queue();
  for (const JobId id : waiting)
    finish(id, wire::JobState::failed, why);
  while (!runs_.empty()) {
    const auto deployment = runs_.begin()->second->deployment;
    finish(runs_.begin()->first, wire::JobState::failed, why);
    if (deployment) tools_.deployments.take_down(deployment, why.what);
  }
}

}  // namespace troupe::jobs
