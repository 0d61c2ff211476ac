#include "controller/journal/record.h"

#include <algorithm>

#include "base/format.h"
#include "controller/jobs/job_table.h"
#include "transport/wire/codec.h"

namespace troupe::journal {
namespace {

/// Bounds of what is stored, which must fit where messages fit.
constexpr std::size_t kKeptRecoveries = 200;
constexpr std::size_t kKeptCause = 1000;

/// Returns the phase by its name. Of a job that has ended the name may be its state's.
JobPhase phase_of(const Facts& facts) {
  if (has_ended(facts.state)) return JobPhase::ended;
  for (auto phase = JobPhase::queued; phase < JobPhase::ended;
       phase = static_cast<JobPhase>(static_cast<int>(phase) + 1))
    if (to_string(phase) == facts.phase) return phase;
  throw wire::WireError(wire::WireErrc::bad_value, "a job's phase");
}

void fail(jobs::JobEntry& job, const std::string& why) {
  job.state = JobState::failed;
  job.phase = JobPhase::ended;
  job.failure = {wire::FailureCode::internal, fmt::format("[journal] job {}: {}", job.id, why)};
  job.outcome.report.clear();
}

void read_inputs(jobs::JobEntry& job, const std::vector<Part>& parts, const KeepBytes& keep) {
  for (const auto& field : jobs::input_blobs(job.spec.request))
    *field.id = 0;
  if (has_ended(job.state)) return;
  if (!all_here(parts)) return fail(job, "the data that it starts from is damaged");
  for (const auto& part : parts) {
    for (const auto& field : jobs::input_blobs(job.spec.request)) {
      if (part.head != to_string(field.field) || *field.id != 0) continue;
      *field.id = keep(part.bytes);
      break;
    }
  }
}

void read_boundary(jobs::JobEntry& job, const std::vector<Part>& parts, const KeepBytes& keep) {
  if (has_ended(job.state) || parts.empty() || !all_here(parts)) return;
  jobs::Boundary boundary;
  for (const auto& part : parts) {
    auto head = wire::decode<PieceHead>(wire::as_bytes(part.head));
    boundary.next_step = head.next_step;
    head.piece.blob.id = keep(part.bytes);
    boundary.pieces.push_back(std::move(head.piece));
  }
  job.course.boundary = std::move(boundary);
}

void read_results(jobs::JobEntry& job, const std::vector<Part>& parts, const KeepBytes& keep) {
  if (job.state != JobState::succeeded) return;
  if (parts.empty() || !all_here(parts)) return fail(job, "its result is damaged");
  for (const auto& part : parts) {
    auto ref = wire::decode<wire::BlobRef>(wire::as_bytes(part.head));
    ref.id = keep(part.bytes);
    job.outcome.blobs.push_back(std::move(ref));
  }
}

}  // namespace

bool all_here(const std::vector<Part>& parts) {
  return std::ranges::all_of(parts, [](const auto& part) { return part.bytes != nullptr; });
}

Facts facts_of(const jobs::JobEntry& job, const Calendar& calendar) {
  Facts facts;
  facts.state = job.state;
  facts.phase = to_string(job.phase);
  facts.step = job.step;
  facts.detached = job.client.detached;
  facts.cancel_asked = job.cancel_asked;
  facts.submitted = calendar.to_unix(job.submitted);
  facts.started = calendar.to_unix(job.started);
  facts.ended = calendar.to_unix(job.ended);
  facts.failure = job.failure;
  facts.refill_steps = job.plan.request.refill_steps;
  const std::size_t first = job.course.recoveries.size() > kKeptRecoveries
                                ? job.course.recoveries.size() - kKeptRecoveries
                                : 0;
  for (std::size_t i = first; i < job.course.recoveries.size(); ++i) {
    const auto& recovery = job.course.recoveries[i];
    facts.recoveries.push_back({recovery.cause.substr(0, kKeptCause), recovery.step,
                                calendar.to_unix(recovery.began),
                                calendar.to_unix(recovery.resumed)});
  }
  for (const auto& part : job.course.parts) {
    const auto& of = part.degrees;
    auto& degrees = facts.parts.emplace_back(PartFacts{part.first_step, {}}).degrees;
    for (const auto& [axis, degree] : mesh::kSplitAxes)
      degrees.push_back(of.*degree);
  }
  facts.pictures = job.plan.picture_count();
  facts.steps = job.plan.request.steps;
  facts.fingerprint = job.fingerprint;
  facts.lora_fingerprints = job.plan.lora_fingerprints;
  facts.controlnet_fingerprints = job.plan.controlnet_fingerprints;
  facts.actor_seconds = job.cost.actor_seconds;
  facts.restarts = job.course.restarts;
  facts.user = job.client.user;
  facts.restart_step = job.course.restart_step;
  facts.alone = job.batching.alone;
  return facts;
}

std::vector<Part> inputs_of(const jobs::JobEntry& job, const BytesOf& bytes_of) {
  std::vector<Part> parts;
  auto request = job.spec.request;
  for (const auto& field : jobs::input_blobs(request)) {
    if (*field.id != 0) parts.push_back({to_string(field.field), bytes_of(*field.id)});
  }
  return parts;
}

std::vector<Part> boundary_of(const jobs::JobEntry& job, const BytesOf& bytes_of) {
  std::vector<Part> parts;
  if (!job.course.boundary) return parts;
  for (const auto& piece : job.course.boundary->pieces)
    parts.push_back(
        {wire::encode(PieceHead{job.course.boundary->next_step, piece}), bytes_of(piece.blob.id)});
  return parts;
}

std::vector<Part> results_of(const jobs::JobEntry& job, const BytesOf& bytes_of) {
  std::vector<Part> parts;
  for (const auto& blob : job.outcome.blobs)
    parts.push_back({wire::encode(blob), bytes_of(blob.id)});
  return parts;
}

double newest_time(const Record& record) {
  try {
    const auto facts = wire::decode<Facts>(wire::as_bytes(record.facts));
    double newest = std::max({facts.submitted, facts.started, facts.ended});
    for (const auto& recovery : facts.recoveries)
      newest = std::max({newest, recovery.began, recovery.resumed});
    return newest;
  } catch (const wire::WireError&) {
    return 0;  // its damage is said elsewhere
  }
}

jobs::JobEntry job_of(const Record& record, const Calendar& calendar, const KeepBytes& keep) {
  jobs::JobEntry job;
  job.id = record.id;
  job.client.key = record.key;
  try {
    if (!record.lost.empty() && record.spec.empty())
      throw wire::WireError(wire::WireErrc::truncated, "");
    job.spec = wire::decode<wire::JobSpec>(wire::as_bytes(record.spec));
    const auto facts = wire::decode<Facts>(wire::as_bytes(record.facts));
    job.state = facts.state;
    job.phase = phase_of(facts);
    job.step = facts.step;
    job.client.detached = facts.detached;
    job.cancel_asked = facts.cancel_asked;
    job.submitted = calendar.from_unix(facts.submitted);
    job.started = calendar.from_unix(facts.started);
    job.ended = calendar.from_unix(facts.ended);
    job.failure = facts.failure;
    job.outcome.report = record.report;
    for (const auto& recovery : facts.recoveries) {
      job.course.recoveries.push_back({recovery.cause, recovery.step,
                                       calendar.from_unix(recovery.began),
                                       calendar.from_unix(recovery.resumed)});
    }
    for (const auto& part : facts.parts) {
      const auto& of = part.degrees;
      if (of.size() != std::size(mesh::kSplitAxes))
        throw wire::WireError(wire::WireErrc::bad_value, "degrees of a mesh");
      auto& degrees = job.course.parts.emplace_back(jobs::JobPart{part.first_step, {}}).degrees;
      for (std::size_t i = 0; i < of.size(); ++i)
        degrees.*mesh::kSplitAxes[i].degree = of[i];
    }
    job.fingerprint = facts.fingerprint;
    job.cost.actor_seconds = facts.actor_seconds;
    job.course.restarts = facts.restarts;
    job.client.user = facts.user;
    job.client.apart = !facts.user.empty();  // the role of its key was not kept
    job.course.restart_step = facts.restart_step;
    job.batching.alone = facts.alone;
    if (!record.damage.empty()) fail(job, record.damage + " is damaged");
    read_inputs(job, record.inputs, keep);
    read_boundary(job, record.boundary, keep);
    read_results(job, record.results, keep);
    job.plan.request = job.spec.request;
    job.plan.request.refill_steps = facts.refill_steps;
    job.plan.request.steps = facts.steps;
    job.plan.lora_fingerprints = facts.lora_fingerprints;
    job.plan.controlnet_fingerprints = facts.controlnet_fingerprints;
    job.plan.images = {{0, facts.pictures}};
  } catch (const wire::WireError& error) {
    fail(job, std::string("what is kept of it is damaged: ") + error.what());
  }
  if (!record.lost.empty()) {
    fail(job, record.lost);
    if (record.cancelled) job.state = JobState::cancelled;
    job.phase = JobPhase::ended;
    job.outcome.blobs.clear();
    job.course.boundary.reset();
  }
  if (job.spec.request.prompts.empty()) job.spec.request.prompts = {"(lost)"};
  if (job.plan.request.prompts.empty()) job.plan.request.prompts = job.spec.request.prompts;
  return job;
}

}  // namespace troupe::journal
