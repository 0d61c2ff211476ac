#include "controller/jobs/batch.h"

#include <algorithm>
#include <memory>

#include "base/format.h"
#include "controller/jobs/batching.h"

namespace troupe::jobs {
namespace {

/// Numbers the warning's prompt as the member does. False where the prompt is another member's.
bool make_own(wire::Warning& warning, const BatchMember& member,
              const wire::ImageRequest& request) {
  if (!warning.prompt) return true;
  const std::int32_t per_prompt = request.images_per_prompt;
  const auto picture = std::int64_t{*warning.prompt} * per_prompt;
  if (picture < member.pictures.begin || picture >= member.pictures.end) return false;
  *warning.prompt -= member.pictures.begin / per_prompt;
  return true;
}

bool contains(const std::vector<JobId>& jobs, JobId job) {
  return std::ranges::find(jobs, job) != jobs.end();
}

}  // namespace

std::string Batch::name() const {
  return fmt::format("batch {} ({})", entry_.run.id, jobs_text(living()));
}

std::vector<JobEntry*> Batch::entries() {
  std::vector<JobEntry*> entries{&entry_.run};
  for (const JobId id : living())
    entries.push_back(&job(id));
  return entries;
}

void Batch::waits_for(const std::string& what) {
  entry_.run.waits_for = what;
  if (what.empty()) return say_who_is_in_it();
  for (const JobId id : living())
    job(id).waits_for = what;
}

void Batch::say_who_is_in_it() {
  const auto all = living();
  for (const JobId id : all) {
    auto others = all;
    std::erase(others, id);
    job(id).waits_for = company_text(others);
  }
}

void Batch::progress(const std::vector<std::string>& warnings) {
  const JobEntry& run = entry_.run;
  tools_.record([&](auto& recorder, auto now_ns) { recorder.phase(run.id, run.phase, now_ns); });
  for (const JobId id : living()) {
    JobEntry& member = job(id);
    member.phase = run.phase;
    member.step = run.step;
    member.timestep = run.timestep;
    tools_.callbacks.tell(member, {}, warnings);
  }
}

void Batch::warn(const std::vector<wire::Warning>& warnings) {
  for (const JobId id : living()) {
    auto own = warnings;
    std::erase_if(own, [&](auto& warning) {
      return !make_own(warning, member_of(entry_, id), entry_.run.plan.request);
    });
    say(job(id), own);
  }
}

void Batch::take(const Origin& from, const wire::BlobRef& own, const std::string& bytes) {
  if (own.name == "latents") {
    take_latents(from, own, bytes);
    return tools_.environment.drop_blob(own.id);
  }
  const BatchMember* owner = owner_of(from);
  if (!owner) return tools_.environment.drop_blob(own.id);
  auto& portion = portions_[owner->job];
  if (!from.result) return pass_on(job(owner->job), portion.interim, 1, from, own);
  const auto replica = entry_.run.plan.images.at(static_cast<std::size_t>(from.replica));
  portion.pictures[replica.begin + from.first + static_cast<std::int32_t>(from.index)] = own;
}

const BatchMember* Batch::owner_of(const Origin& from) const {
  const auto replica = entry_.run.plan.images.at(static_cast<std::size_t>(from.replica));
  const auto picture = replica.begin + from.first + static_cast<std::int32_t>(from.index);
  const auto all = living();
  std::size_t begun = 0;  // members whose first picture the replica has, so far
  for (const auto& member : entry_.members) {
    const auto own = share_of_replica(member, replica);
    const bool begins = own.begin < own.end && own.begin == member.pictures.begin;
    // Of each job that begins in the replica there is one preview.
    const bool wanted =
        from.result ? own.begin <= picture && picture < own.end : begins && begun == from.index;
    begun += begins;
    if (wanted && contains(all, member.job)) return &member;
  }
  return nullptr;
}

void Batch::take_latents(const Origin& from, const wire::BlobRef& whole, const std::string& bytes) {
  const auto& images = entry_.run.plan.images;
  const auto replica = images.at(static_cast<std::size_t>(from.replica));
  const auto all = living();
  for (const auto& member : entry_.members) {
    const auto own = share_of_replica(member, replica);
    if (own.begin >= own.end || !contains(all, member.job)) continue;
    auto part = whole;
    auto cut = std::make_shared<const std::string>(cut_pictures(bytes, replica, own));
    part.bytes = cut->size();
    if (!part.shape.empty()) part.shape.front() = own.end - own.begin;
    part.id = tools_.environment.keep_blob(cut);
    auto& portion = portions_[member.job];
    if (from.result) {
      portion.latents[from.replica] = part;
      continue;
    }
    const auto parts = std::ranges::count_if(images, [&](const auto& other) {
      const auto share = share_of_replica(member, other);
      return share.begin < share.end;
    });
    pass_on(job(member.job), portion.interim, static_cast<int>(parts), from, part);
  }
}

void Batch::drop() {
  for (auto& [member, portion] : portions_)
    drop(portion);
}

void Batch::drop(Portion& portion) {
  for (auto* blobs : {&portion.pictures, &portion.latents}) {
    for (const auto& [place, blob] : *blobs)
      tools_.environment.drop_blob(blob.id);
    blobs->clear();
  }
  drop_interim(portion.interim);
}

void Batch::succeed(const RunFigures& figures) {
  closing_ = true;
  for (const JobId id : living())
    succeed(job(id), figures);
  close(JobState::succeeded);
}

void Batch::succeed(JobEntry& job, const RunFigures& figures) {
  auto& portion = portions_[job.id];
  auto& blobs = job.outcome.blobs;
  for (auto* own : {&portion.pictures, &portion.latents}) {
    for (const auto& [place, blob] : *own)
      blobs.push_back(blob);
    own->clear();
  }
  auto seconds = figures.seconds;
  seconds.queued = job.started - job.submitted;
  seconds.loading = figures.began - job.started;
  seconds.total = tools_.environment.now() - job.submitted;
  auto told = job;
  told.plan = entry_.run.plan;
  told.plan.request = job.plan.request;
  told.plan.warnings = job.plan.warnings;
  told.plan.request.refill_steps = entry_.run.plan.request.refill_steps;
  job.outcome.report = make_report(told, figures.deployment, seconds, figures.stats,
                                   figures.blob_bytes, figures.warnings, entry_.members);
  const auto why = check_message_size(job);
  if (!why) return tools_.callbacks.finish(job.id, JobState::succeeded, {});
  for (const auto& blob : blobs)
    tools_.environment.drop_blob(blob.id);
  blobs.clear();
  job.outcome.report.clear();
  tools_.callbacks.finish(job.id, JobState::failed, {wire::FailureCode::internal, *why});
}

void Batch::fail(const wire::Failure& why) {
  closing_ = true;
  const std::string cause = name() + " failed: " + why.what.substr(0, kLongestCause);
  tools_.listener->batch_failing(entry_.run, cause);
  const double now = tools_.environment.now();  // one moment for all: they are charged alike
  for (const JobId id : living()) {
    JobEntry& member = job(id);
    charge_part(member_of(entry_, id), now);
    if (!tools_.table.requeue(id)) continue;
    member.waits_for.clear();
    member.course.recoveries.push_back({.cause = cause, .step = 0, .began = now});
    tools_.callbacks.tell(member, {}, {"it begins anew, alone: " + cause});
  }
  close(JobState::failed, why.what);
}

void Batch::end(JobState state, const wire::Failure& failure) {
  closing_ = true;
  const wire::Failure cause = failure;  // perhaps the batch's own
  for (const JobId id : living())
    tools_.callbacks.finish(id, state, cause);
  close(state);
}

void Batch::close(JobState state, const std::string& why) {
  tools_.callbacks.close(entry_.run.id, state, why);
}

void Batch::leaving(JobEntry& member) {
  charge_part(member_of(entry_, member.id), tools_.environment.now());
  if (const auto portion = portions_.find(member.id); portion != portions_.end()) {
    drop(portion->second);
    portions_.erase(portion);
  }
}

bool Batch::is_left() {
  if (closing_ || entry_.run.cancel_asked) return false;
  if (living().empty()) return true;
  say_who_is_in_it();
  return false;
}

void Batch::charge_part(const BatchMember& member, double now) {
  const auto& own = member.pictures;
  const double part = static_cast<double>(own.end - own.begin) / entry_.members.back().pictures.end;
  const double seconds = now - entry_.run.started;
  tools_.table.charge(member.job, part * seconds * entry_.run.plan.degrees.world());
}

}  // namespace troupe::jobs
