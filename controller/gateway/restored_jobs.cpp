#include "controller/gateway/restored_jobs.h"

#include "controller/jobs/reuse_stages.h"
#include "controller/plan/planner.h"
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
                 [this, id, cause](const ModelReading& reading) { take_up(id, cause, reading); });
  }
}

void RestoredJobs::take_up(jobs::JobId id, const std::string& cause, const ModelReading& reading) {
  auto* job = tools_.table.find(id);
  if (closed_ || !job || job->state != JobState::queued) return;
  const auto give_up = [&](wire::FailureCode code, const std::string& why) {
    tools_.runner.give_up(id, {code, cause + ", and the job cannot go on: " + why});
  };
  if (!reading.model) return give_up(wire::FailureCode::bad_request, reading.error);
  if (reading.fingerprint != job->fingerprint)
    return give_up(wire::FailureCode::bad_request,
                   job->spec.model + " was changed since it came in");
  if (reading.lora_fingerprints != job->plan.lora_fingerprints)
    return give_up(wire::FailureCode::bad_request, "a LoRA's file was changed since it came in");
  if (reading.embeddings != job->spec.request.embeddings)
    return give_up(wire::FailureCode::bad_request,
                   "an embedding's file was changed since it came in");
  plan::Plan plan;
  try {
    const auto machine = tools_.machine_for(facts_, job->spec.request);
    plan = plan::make_plan(*reading.model, job->spec.request, job->spec.parallelism, machine);
    plan.lora_fingerprints = reading.lora_fingerprints;
    if (job->spec.parallelism.stages.empty())
      jobs::reuse_stages(plan, job->spec.model, job->fingerprint, *reading.model, machine,
                         {tools_.members, tools_.deployments, tools_.table});
  } catch (const std::exception& error) {
    return give_up(wire::FailureCode::bad_request, error.what());
  }
  job->model = reading.model;
  const auto failure =
      journal::take_up(*job, std::move(plan), cause, tools_.now(), tools_.max_restarts);
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
