#include <stdexcept>

#include "controller/jobs/batching.h"
#include "controller/jobs/run.h"
#include "controller/jobs/why_alone.h"

// Jobs that compute as one: how a batch comes together, and how its members leave it. In between it
// is a run like any other, under a number of its own.

namespace troupe::jobs {

JobId JobRunner::run_of(JobId id) const {
  const JobEntry* job = tools_.table.find(id);
  return job && job->batch != 0 ? job->batch : id;
}

std::vector<JobId> JobRunner::jobs_of(JobId run) const {
  const JobEntry* entry = tools_.table.find_run(run);
  return entry && !entry->members.empty() ? tools_.table.members_of(*entry) : std::vector{run};
}

std::string JobRunner::name_of(JobId run) const {
  const JobEntry* entry = tools_.table.find_run(run);
  if (!entry || entry->members.empty()) return jobs_text({run});
  return "batch " + std::to_string(run) + " (" + jobs_text(tools_.table.members_of(*entry)) + ")";
}

bool JobRunner::in_batch(const JobEntry& job) const {
  return job.batch != 0 && !wire::is_terminal(job.state) && runs_.contains(job.batch);
}

std::vector<JobEntry*> JobRunner::entries_of(JobEntry& run) {
  std::vector<JobEntry*> entries{&run};
  for (const JobId id : tools_.table.members_of(run))
    entries.push_back(tools_.table.find(id));
  return entries;
}

std::vector<const JobEntry*> JobRunner::waiting_with(const JobEntry& first) const {
  std::vector<const JobEntry*> waiting{&first};
  for (const JobId id : tools_.table.queue()) {
    const JobEntry* job = tools_.table.find(id);
    if (id != first.id && !paused(id) && may_meet(first, *job)) waiting.push_back(job);
  }
  return waiting;
}

std::string JobRunner::bar_to_batching(const wire::ImageRequest& request) const {
  return jobs::bar_to_batching(request, tools_.options.max_batch);
}

std::string JobRunner::why_alone(const JobEntry& first) const {
  if (!first.spec.may_batch || !has_place(first)) return "";
  if (paused(first.id)) return "it was paused when it began";
  auto others = waiting_with(first);
  others.erase(others.begin());
  return jobs::why_alone(first, others, tools_.options.max_batch,
                         tools_.deployments.places_for(first.plan));
}

bool JobRunner::start_batch(const JobEntry& first) {
  if (!tools_.plan_batch || tools_.options.max_batch < 2 || !can_batch(first) || paused(first.id) ||
      !has_place(first))
    return false;
  // Where several could begin side by side, that is sooner for all of them.
  auto jobs = companions(waiting_with(first), tools_.options.max_batch,
                         tools_.deployments.places_for(first.plan));
  for (; jobs.size() > 1; jobs.pop_back()) {
    JobEntry together;
    try {
      together = batch_of(jobs, tools_.plan_batch(first, combined_request(jobs)));
    } catch (const std::invalid_argument&) {
      continue;  // too much text for one request
    }
    if (together.plan.degrees != first.plan.degrees || tools_.deployments.shortage(together.plan))
      continue;
    const auto deployment = find_deployment(together);
    if (!deployment) continue;
    JobEntry& batch = tools_.table.join(std::move(together), tools_.outside.now());
    record([&](auto& recorder, auto now_ns) {
      recorder.joined(batch.id, name_of(batch.id), jobs_text(tools_.table.members_of(batch)),
                      now_ns);
    });
    auto& run = runs_[batch.id] = std::make_unique<Run>();
    run->job = batch.id;
    move_in(*run, deployment);
    return true;
  }
  return false;
}

void JobRunner::say_company(const JobEntry& batch) {
  const auto living = tools_.table.members_of(batch);
  for (const JobId id : living) {
    auto others = living;
    std::erase(others, id);
    tools_.table.find(id)->waits_for = company_text(others);
  }
}

void JobRunner::charge_part(const JobEntry& batch, JobId member, double now) {
  const auto& own = member_of(batch, member).pictures;
  const double part = static_cast<double>(own.end - own.begin) / batch.members.back().pictures.end;
  tools_.table.charge(member, part * (now - batch.started) * batch.plan.degrees.world());
}

void JobRunner::settle(JobEntry& member) {
  Run& run = *find(member.batch);
  charge_part(entry(run), member.id, tools_.outside.now());
  if (const auto portion = run.portions.find(member.id); portion != run.portions.end()) {
    drop_portion(portion->second);
    run.portions.erase(portion);
  }
}

void JobRunner::left_batch(JobId id) {
  const Run* run = find(id);
  if (!run || run->closing) return;
  JobEntry& batch = entry(*run);
  if (!tools_.table.members_of(batch).empty()) return say_company(batch);
  if (!batch.cancel_asked) cancel_run(batch, "none of its jobs is left");
}

void JobRunner::fail_or_retry(Run& run, const wire::Failure& why) {
  if (entry(run).members.empty()) {
    finish(run.job, wire::JobState::failed, why);
  } else {
    retry_alone(run, why);
  }
}

void JobRunner::retry_alone(Run& run, const wire::Failure& why) {
  run.closing = true;
  JobEntry& batch = entry(run);
  const std::string cause = name_of(batch.id) + " failed: " + why.what.substr(0, kLongestCause);
  const double now = tools_.outside.now();
  tools_.on_batch_failing(batch, cause);
  for (const JobId id : tools_.table.members_of(batch)) {
    JobEntry& job = *tools_.table.find(id);
    charge_part(batch, id, now);
    if (!tools_.table.requeue(id)) continue;
    job.waits_for.clear();
    job.recoveries.push_back({.cause = cause, .step = 0, .began = now});
    progress(job, {}, {"it begins anew, alone: " + cause});
  }
  close_batch(batch, "failed: " + why.what);
}

void JobRunner::end_batch(JobEntry& batch, wire::JobState state, const wire::Failure& failure) {
  if (Run* run = find(batch.id)) run->closing = true;
  for (const JobId id : tools_.table.members_of(batch))
    finish(id, state, failure);
  close_batch(batch, wire::to_string(state));
}

void JobRunner::close_batch(JobEntry& batch, const std::string& state) {
  const JobId id = batch.id;
  dispatcher_.remove(id);
  record([&](auto& recorder, auto now_ns) { recorder.closed(id, state, now_ns); });
  release(id, batch, /*succeeded=*/false);
  tools_.table.dissolve(id);
  tools_.outside.post([this] { start_queued(); });
}

}  // namespace troupe::jobs
