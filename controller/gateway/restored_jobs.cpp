#include "controller/gateway/restored_jobs.h"

#include "transport/control/after.h"

namespace troupe::gateway {
namespace {

constexpr std::chrono::minutes kReadWithin{10};  // nobody waits for an answer

}  // namespace

void RestoredJobs::take_up(const journal::Revival& revival, const std::string& cause) {
  const auto remember = [this](const jobs::JobEntry& job) {
    if (tools_.recorder)
      tools_.recorder->submitted(job.id, job.spec.request.prompts.front(), tools_.monotonic());
  };
  for (const auto id : revival.cancelled) {
    remember(*tools_.table.find(id));
    tools_.runner.cancel_again(id);
  }
  for (const auto id : revival.to_plan) {
    const auto* job = tools_.table.find(id);
    if (!job->client.detached)
      await_client(id, "its client has not come back after its controller's restart");
    remember(*job);
    reader_.read(job->spec.model, job->spec.request, kReadWithin,
                 [this, id, cause](const ModelReading& reading) { plan(id, cause, reading); });
  }
}

jobs::JobEntry* RestoredJobs::awaited(jobs::JobId id) {
  auto* job = tools_.table.find(id);
  return !closed_ && job && job->state == JobState::queued ? job : nullptr;
}

void RestoredJobs::give_up(jobs::JobId id, const std::string& cause, const std::string& why) {
  tools_.runner.give_up(
      id, {wire::FailureCode::bad_request, cause + ", and the job cannot go on: " + why});
}

void RestoredJobs::plan(jobs::JobId id, const std::string& cause, const ModelReading& reading) {
  const auto* job = awaited(id);
  if (!job) return;
  if (!reading.model) return give_up(id, cause, reading.error);
  if (reading.fingerprint != job->fingerprint)
    return give_up(id, cause, job->spec.model + " was changed since it came in");
  if (reading.lora_fingerprints != job->plan.lora_fingerprints)
    return give_up(id, cause, "a LoRA's file was changed since it came in");
  if (reading.embeddings != job->spec.request.embeddings)
    return give_up(id, cause, "an embedding's file was changed since it came in");
  planner_.plan(
      {.job = job->spec,
       .reading = reading,
       .must_fit = false,
       .bar = [this, id]() -> std::optional<wire::Failure> {
         if (awaited(id)) return std::nullopt;
         return wire::Failure{wire::FailureCode::cancelled, "the job is not awaited"};
       },
       .handler = [this, id, cause, reading](
                      PlannedJob planned) { take_up(id, cause, reading, std::move(planned)); }});
}

void RestoredJobs::take_up(jobs::JobId id, const std::string& cause, const ModelReading& reading,
                           PlannedJob planned) {
  auto* job = awaited(id);
  if (!job) return;
  if (planned.failure) return give_up(id, cause, planned.failure->what);
  job->model = reading.model;
  const auto failure =
      journal::take_up(*job, std::move(planned.plan), cause, tools_.now(), tools_.max_restarts);
  if (tools_.journal) tools_.journal->changed(*job);
  if (failure) return tools_.runner.give_up(id, *failure);
  // Hosts may join again, and what an actor may hold is known when it says so.
  tools_.runner.await_actors(id, "its controller was started again");
}

void RestoredJobs::await_client(jobs::JobId id, const std::string& cause) {
  const auto absence = away_[id] = ++absences_;
  control::after(tools_.io, tools_.grace, [this, id, absence, cause] {
    const auto waited = away_.find(id);
    if (waited == away_.end() || waited->second != absence) return;
    away_.erase(waited);
    const auto* job = tools_.table.find(id);
    if (!closed_ && job && job->client.owner == 0 && !has_ended(job->state))
      tools_.runner.cancel(id, cause);
  });
}

}  // namespace troupe::gateway
