#include "controller/journal/journal.h"

#include <algorithm>

#include "base/format.h"
#include "controller/jobs/replan.h"
#include "transport/wire/codec.h"

namespace troupe::journal {

Change Journal::change(Change::Kind kind, const jobs::JobEntry& job) {
  seen_[job.id] = {job.phase, job.course.recoveries.size(), job.cancel_asked};
  Change change;
  change.kind = kind;
  change.job = job.id;
  change.facts = wire::encode(facts_of(job, calendar_));
  return change;
}

void Journal::accepted(const jobs::JobEntry& job, Done done) {
  auto accepted = change(Change::Kind::accepted, job);
  accepted.key = job.client.key;
  accepted.spec = wire::encode(job.spec);
  accepted.parts = inputs_of(job, bytes_of_);
  write_(std::move(accepted),
         [this, id = job.id, done = std::move(done)](const std::optional<std::string>& error) {
           if (error) seen_.erase(id);
           if (done) done(error);
         });
}

void Journal::changed(const jobs::JobEntry& job) {
  const auto seen = seen_.find(job.id);
  if (seen != seen_.end() &&
      seen->second == Seen{job.phase, job.course.recoveries.size(), job.cancel_asked})
    return;
  write_(change(Change::Kind::facts, job), {});
}

void Journal::boundary(const jobs::JobEntry& job) {
  auto boundary = change(Change::Kind::boundary, job);
  boundary.parts = boundary_of(job, bytes_of_);
  write_(std::move(boundary), {});
}

void Journal::ended(const jobs::JobEntry& job, Done done) {
  auto ended = change(Change::Kind::ended, job);
  ended.report = job.outcome.report;
  ended.state = job.state;
  ended.parts = results_of(job, bytes_of_);
  seen_.erase(job.id);
  write_(std::move(ended), std::move(done));
}

void Journal::forgotten(jobs::JobId job) {
  seen_.erase(job);
  Change forgotten;
  forgotten.kind = Change::Kind::forgotten;
  forgotten.job = job;
  write_(std::move(forgotten), {});
}

std::string cause_of(const PreviousRun& previous) {
  if (previous.stopped) return "its cluster was stopped";
  return fmt::format("its controller (pid {}) ended without a word", previous.pid);
}

Revival revive(const std::vector<Record>& records, const PreviousRun& previous,
               const Calendar& calendar, const KeepBytes& keep, jobs::JobTable& table) {
  std::vector<jobs::JobEntry> jobs;
  double newest = 0;
  for (const auto& record : records) {
    jobs.push_back(job_of(record, calendar, keep));
    newest = std::max(newest, newest_time(record));
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
    const bool ended = has_ended(a.state);
    if (ended != has_ended(b.state)) return ended;
    return ended ? a.ended < b.ended : a.id < b.id;
  });
  Revival revival;
  revival.clock_back = std::max(0.0, newest - calendar.offset - calendar.now);
  for (auto& job : jobs) {
    if (!has_ended(job.state))
      (job.cancel_asked ? revival.cancelled : revival.to_plan).push_back(job.id);
    table.restore(std::move(job));
  }
  table.count_from(previous.last_job + 1);
  return revival;
}

std::optional<wire::Failure> take_up(jobs::JobEntry& job, plan::Plan plan, const std::string& cause,
                                     double now, int max_restarts) {
  const int next = job.course.boundary ? job.course.boundary->next_step : 0;
  // Steps that were filled anew and lie before the boundary are in it; later ones are not to come.
  auto refills = job.spec.request.refill_steps;
  for (const int step : job.plan.request.refill_steps) {
    if (step < next) refills.push_back(step);
  }
  std::sort(refills.begin(), refills.end());
  refills.erase(std::unique(refills.begin(), refills.end()), refills.end());
  job.plan = std::move(plan);
  job.plan.request.refill_steps = std::move(refills);
  if (job.course.boundary) jobs::add_refill(job.plan, next);
  if (job.phase == JobPhase::queued) return std::nullopt;
  job.course.restarts = next > job.course.restart_step ? 1 : job.course.restarts + 1;
  job.course.restart_step = next;
  if (job.course.restarts > max_restarts + 1) {
    return wire::Failure{
        wire::FailureCode::lost,
        fmt::format("{}; it was its controller's end number {} without a step between them", cause,
                    job.course.restarts)};
  }
  job.course.recoveries.push_back({.cause = cause, .step = next, .began = now});
  job.phase = JobPhase::queued;
  return std::nullopt;
}

}  // namespace troupe::journal
