#include <algorithm>
#include <memory>

#include "controller/jobs/batching.h"
#include "controller/jobs/report.h"
#include "controller/jobs/run.h"

// What comes of a batch, to each of its jobs what is its own: pictures, latents, previews, warnings
// and a report.

namespace troupe::jobs {

namespace {

std::string text_of(const wire::Warning& warning) {
  if (!warning.prompt) return warning.what;
  return "prompt " + std::to_string(*warning.prompt) + " " + warning.what;
}

/// Numbers the prompt as the member does. False where it is another member's.
bool make_own(wire::Warning& warning, const BatchMember& member,
              const wire::ImageRequest& request) {
  if (!warning.prompt) return true;
  const std::int32_t per_prompt = request.images_per_prompt;
  const auto picture = std::int64_t{*warning.prompt} * per_prompt;
  if (picture < member.pictures.begin || picture >= member.pictures.end) return false;
  *warning.prompt -= member.pictures.begin / per_prompt;
  return true;
}

}  // namespace

void JobRunner::warn(Run& run, const std::vector<wire::Warning>& warnings) {
  JobEntry& whole = entry(run);
  const bool batch = !whole.members.empty();
  for (JobEntry* job : entries_of(whole)) {
    if (batch && job == &whole) continue;
    std::vector<std::string> news;
    for (auto warning : warnings) {
      if (batch && !make_own(warning, member_of(whole, job->id), whole.plan.request)) continue;
      auto text = text_of(warning);
      // A loss, a batch that failed or another dp replica: the same is found once more.
      if (std::ranges::find(job->warnings, text) != job->warnings.end()) continue;
      job->warnings.push_back(text);
      news.push_back(std::move(text));
    }
    if (!news.empty()) progress(*job, {}, std::move(news));
  }
}

void JobRunner::hand_out(Run& run, const Origin& from, const wire::BlobRef& whole,
                         const std::string& bytes) {
  const JobEntry& batch = entry(run);
  const auto& images = batch.plan.images;
  const auto replica = images.at(static_cast<std::size_t>(from.replica));
  const auto living = tools_.table.members_of(batch);
  const bool latents = whole.name == "latents";
  const bool preview = !latents && !from.result;
  const auto picture = replica.begin + static_cast<std::int32_t>(from.index);
  std::size_t begun = 0;  // members whose first picture the replica has, so far
  bool taken = false;
  for (const auto& member : batch.members) {
    const auto own = share_of_replica(member, replica);
    const bool begins = own.begin < own.end && own.begin == member.pictures.begin;
    const bool wanted = latents   ? own.begin < own.end
                        : preview ? begins && begun == from.index
                                  : own.begin <= picture && picture < own.end;
    begun += begins;
    if (!wanted || std::find(living.begin(), living.end(), member.job) == living.end()) continue;
    JobEntry& job = *tools_.table.find(member.job);
    auto& portion = run.portions[member.job];
    if (!latents) {
      taken = true;
      if (preview) {
        pass_on(job, portion.interim, 1, from, whole);
      } else {
        portion.pictures[picture] = whole;
      }
      break;
    }
    auto part = whole;
    auto cut = std::make_shared<const std::string>(cut_pictures(bytes, replica, own));
    part.bytes = cut->size();
    if (!part.shape.empty()) part.shape.front() = own.end - own.begin;
    part.id = tools_.environment.keep_blob(cut);
    if (from.result) {
      portion.latents[from.replica] = part;
      continue;
    }
    const auto parts = std::count_if(images.begin(), images.end(), [&](const auto& other) {
      const auto share = share_of_replica(member, other);
      return share.begin < share.end;
    });
    pass_on(job, portion.interim, static_cast<int>(parts), from, part);
  }
  if (!taken) tools_.environment.drop_blob(whole.id);
}

void JobRunner::drop_portion(Portion& portion) {
  for (const auto* blobs : {&portion.pictures, &portion.latents}) {
    for (const auto& [place, blob] : *blobs)
      tools_.environment.drop_blob(blob.id);
  }
  for (const auto& [step, parts] : portion.interim) {
    for (const auto& [replica, part] : parts)
      tools_.environment.drop_blob(part.id);
  }
  portion.pictures.clear();
  portion.latents.clear();
  portion.interim.clear();
}

void JobRunner::succeed_together(Run& run, const PhaseSeconds& seconds) {
  run.closing = true;
  JobEntry& batch = entry(run);
  for (const JobId id : tools_.table.members_of(batch)) {
    JobEntry& job = *tools_.table.find(id);
    auto portion = std::move(run.portions[id]);
    run.portions.erase(id);
    for (const auto* blobs : {&portion.pictures, &portion.latents}) {
      for (const auto& [place, blob] : *blobs)
        job.blobs.push_back(blob);
    }
    portion.pictures.clear();
    portion.latents.clear();
    drop_portion(portion);
    auto own = seconds;
    own.queued = job.started - job.submitted;
    own.loading = run.began - job.started;
    own.total = tools_.environment.now() - job.submitted;
    auto told = job;
    told.plan = batch.plan;
    told.plan.request = job.plan.request;
    told.plan.request.refill_steps = batch.plan.request.refill_steps;
    told.members = batch.members;
    job.report = make_report(told, *run.deployment, own, run.stats, run.blob_bytes, run.warnings);
    std::optional<std::string> unsayable;
    try {
      wire::encode(finished_message(job));
    } catch (const wire::WireError& error) {
      unsayable = error.what();
    }
    if (!unsayable) {
      finish(id, wire::JobState::succeeded, {});
    } else {
      for (const auto& blob : job.blobs)
        tools_.environment.drop_blob(blob.id);
      job.blobs.clear();
      job.report.clear();
      finish(id, wire::JobState::failed,
             {wire::FailureCode::internal, "its report cannot be sent: " + *unsayable});
    }
  }
  close_batch(batch, wire::to_string(wire::JobState::succeeded));
}

}  // namespace troupe::jobs
