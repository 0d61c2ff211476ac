#include "controller/journal/journal.h"

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

}  // namespace troupe::journal
