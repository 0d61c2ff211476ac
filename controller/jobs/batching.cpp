#include "controller/jobs/batching.h"

#include <algorithm>

#include "transport/wire/codec.h"

namespace troupe::jobs {
namespace {

std::int64_t pictures_of(const JobEntry& job) {
  const auto& request = job.spec.request;
  return static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
}

/// The spec without what may differ. Every field that is added to it counts by itself.
std::string terms_of(const JobEntry& job) {
  auto spec = job.spec;
  spec.request.prompts.clear();
  spec.request.seed = 0;
  spec.share.clear();
  return wire::encode(spec);
}

}  // namespace

bool can_batch(const JobEntry& job) {
  const auto& request = job.spec.request;
  return job.spec.may_batch && !job.alone && job.state == wire::JobState::queued && !job.held &&
         !job.boundary && request.init_latents_blob == 0 && request.init_image_blob == 0 &&
         request.step_cache.empty() && !request.prompts.empty();
}

bool alike(const JobEntry& a, const JobEntry& b) {
  return a.fingerprint == b.fingerprint && a.plan.degrees == b.plan.degrees &&
         a.plan.stages == b.plan.stages && a.plan.lora_fingerprints == b.plan.lora_fingerprints &&
         a.plan.request.refill_steps == b.plan.request.refill_steps && terms_of(a) == terms_of(b);
}

std::vector<const JobEntry*> companions(const std::vector<const JobEntry*>& waiting,
                                        std::int64_t max_pictures, std::int64_t places) {
  std::vector<const JobEntry*> found;
  if (waiting.empty()) return found;
  const JobEntry& first = *waiting.front();
  for (const auto* job : waiting) {
    if (job == &first || (can_batch(first) && can_batch(*job) && alike(first, *job)))
      found.push_back(job);
  }
  const auto side_by_side = std::max<std::int64_t>(places, 1);
  const auto each = (std::ssize(found) + side_by_side - 1) / side_by_side;
  std::vector<const JobEntry*> chosen;
  std::int64_t pictures = 0;
  for (const auto* job : found) {
    const auto own = pictures_of(*job);
    if (!chosen.empty() && (pictures + own > max_pictures || std::ssize(chosen) >= each)) break;
    chosen.push_back(job);
    pictures += own;
  }
  return chosen;
}

wire::Parallelism parallelism_of(const JobEntry& job) {
  const auto& degrees = job.plan.degrees;
  wire::Parallelism same{.dp = degrees.dp,
                         .cfg = degrees.cfg,
                         .pp = degrees.pp,
                         .ulysses = degrees.ulysses,
                         .ring = degrees.ring,
                         .tp = degrees.tp,
                         .vae = job.plan.vae_degree};
  // Only as they were listed: a plan divides the blocks by itself elsewhere.
  const auto& listed = job.spec.parallelism.stages;
  if (std::ranges::equal(listed, job.plan.stages, {}, {}, &plan::Stage::blocks))
    same.stages = listed;
  return same;
}

wire::ImageRequest combined_request(const std::vector<const JobEntry*>& jobs) {
  auto request = jobs.front()->spec.request;
  request.prompts.clear();
  for (const auto* job : jobs) {
    const auto& own = job->spec.request;
    request.prompts.insert(request.prompts.end(), own.prompts.begin(), own.prompts.end());
    request.seeds.push_back({static_cast<std::int32_t>(pictures_of(*job)), own.seed});
  }
  return request;
}

JobEntry batch_of(const std::vector<const JobEntry*>& jobs, plan::Plan plan) {
  const JobEntry& first = *jobs.front();
  JobEntry batch;
  batch.spec = first.spec;
  batch.spec.request = combined_request(jobs);
  batch.plan = std::move(plan);
  batch.plan.lora_fingerprints = first.plan.lora_fingerprints;
  batch.fingerprint = first.fingerprint;
  batch.model = first.model;
  batch.client = first.client;
  batch.submitted = first.submitted;
  std::int32_t picture = 0;
  for (const auto* job : jobs) {
    const auto last = picture + static_cast<std::int32_t>(pictures_of(*job));
    batch.members.push_back({job->id, {picture, last}});
    picture = last;
  }
  return batch;
}

wire::RowRange share_of_replica(const BatchMember& member, wire::RowRange replica) {
  const auto begin = std::max(member.pictures.begin, replica.begin);
  return {begin, std::max(begin, std::min(member.pictures.end, replica.end))};
}

std::string cut_pictures(const std::string& bytes, wire::RowRange replica, wire::RowRange own) {
  if (own.begin >= own.end) return {};
  const auto picture = bytes.size() / static_cast<std::size_t>(replica.end - replica.begin);
  return bytes.substr(static_cast<std::size_t>(own.begin - replica.begin) * picture,
                      static_cast<std::size_t>(own.end - own.begin) * picture);
}

std::string jobs_text(const std::vector<JobId>& jobs) {
  std::string text;
  for (const auto id : jobs)
    text += (text.empty() ? "" : ", ") + std::to_string(id);
  return (jobs.size() == 1 ? "job " : "jobs ") + text;
}

std::string company_text(const std::vector<JobId>& others) {
  return others.empty() ? "" : "computes with " + jobs_text(others);
}

}  // namespace troupe::jobs
