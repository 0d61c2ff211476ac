#include "controller/jobs/batching.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/layout.h"
#include "controller/plan/request_defaults.h"
#include "transport/wire/codec.h"
#include "transport/wire/request_fields.h"

namespace troupe::jobs {

namespace {

constexpr auto kAnyNumber = std::numeric_limits<std::int64_t>::max();

std::int64_t pictures_of(const wire::ImageRequest& request) {
  return static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
}

std::int64_t pictures_of(const JobEntry& job) {
  return pictures_of(job.spec.request);
}

/// True when the job gives negative prompts one by one: an empty one then means another thing to
/// some models than none at all.
bool gives_negatives(const JobEntry& job) {
  return !job.spec.request.negative_prompts.empty();
}

/// Returns the spec without what may differ. Every field that is added to it counts by itself.
std::string terms_of(const JobEntry& job) {
  auto spec = job.spec;
  wire::for_each_field([&](const wire::RequestField& field, auto member) {
    if (field.batched == wire::Batched::with_others) spec.request.*member = {};
  });
  spec.share.clear();
  spec.on_behalf_of.clear();
  return wire::encode(spec);
}

}  // namespace

std::string batching_obstacle(const wire::ImageRequest& request, std::int64_t max_pictures) {
  if (request.step_cache != StepCacheRule::none)
    return "its step cache decides by values that a batch rounds otherwise";
  if (request.init_latents_blob != 0) return "it starts from latents of its own";
  if (request.prompt_embeds_blob != 0) return "it brings prompt embeds of its own";
  if (request.init_image_blob != 0) return "it starts from a picture of its own";
  if (!request.images.empty() || !request.control_images.empty())
    return "it brings pictures of its own";
  if (max_pictures < 2) return "the cluster was started with --max-batch 1";
  const auto own = pictures_of(request);
  if (own < max_pictures) return "";
  const auto pictures = counted(own, "picture");
  return fmt::format("it has {}, and a batch has at most {} (--max-batch of the cluster)", pictures,
                     max_pictures);
}

bool can_batch(const JobEntry& job) {
  const auto& request = job.spec.request;
  return job.spec.may_batch && !job.batching.alone && job.state == JobState::queued && !job.held &&
         !job.course.boundary && !request.prompts.empty() &&
         batching_obstacle(request, kAnyNumber).empty();
}

bool alike(const JobEntry& a, const JobEntry& b) {
  return a.fingerprint == b.fingerprint && a.plan.degrees == b.plan.degrees &&
         a.plan.stages == b.plan.stages && a.plan.lora_fingerprints == b.plan.lora_fingerprints &&
         a.plan.controlnet_fingerprints == b.plan.controlnet_fingerprints &&
         a.plan.request.refill_steps == b.plan.request.refill_steps &&
         gives_negatives(a) == gives_negatives(b) && terms_of(a) == terms_of(b);
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
  auto same = plan::parallelism_of(job.plan.degrees, job.plan.vae_degree);
  // Its own, whatever a plan of today would make of the blocks: they may be loaded.
  if (same.pp > 1) {
    for (const auto& stage : job.plan.stages)
      same.stages.push_back(stage.blocks());
  }
  return same;
}

wire::ImageRequest combined_request(const std::vector<const JobEntry*>& jobs) {
  auto request = jobs.front()->spec.request;
  request.prompts.clear();
  request.picture_seeds.clear();
  request.negative_prompts.clear();
  for (const auto* job : jobs) {
    const auto& own = job->spec.request;
    request.prompts.insert(request.prompts.end(), own.prompts.begin(), own.prompts.end());
    const auto runs = plan::seed_runs(own);
    request.seeds.insert(request.seeds.end(), runs.begin(), runs.end());
    request.pictures_of_jobs.push_back(static_cast<std::int32_t>(pictures_of(*job)));
    if (!gives_negatives(*job)) continue;
    const auto negatives = plan::negatives_of_pictures(own);
    request.negative_prompts.insert(request.negative_prompts.end(), negatives.begin(),
                                    negatives.end());
  }
  return request;
}

BatchEntry batch_of(const std::vector<const JobEntry*>& jobs, plan::Plan plan) {
  const JobEntry& first = *jobs.front();
  BatchEntry batch;
  auto& run = batch.run;
  run.spec = first.spec;
  run.spec.request = combined_request(jobs);
  run.plan = std::move(plan);
  run.plan.lora_fingerprints = first.plan.lora_fingerprints;
  run.plan.controlnet_fingerprints = first.plan.controlnet_fingerprints;
  run.fingerprint = first.fingerprint;
  run.model = first.model;
  run.client.number = first.client.number;
  run.client.user = first.client.user;
  run.client.apart = first.client.apart;
  run.submitted = first.submitted;
  std::int32_t picture = 0;
  for (const auto* job : jobs) {
    const auto last = picture + static_cast<std::int32_t>(pictures_of(*job));
    batch.members.push_back({job->id, {picture, last}});
    picture = last;
  }
  return batch;
}

const BatchMember& member_of(const BatchEntry& batch, JobId job) {
  const auto found = std::ranges::find(batch.members, job, &BatchMember::job);
  if (found == batch.members.end())
    throw std::out_of_range(fmt::format("[batch] job {} is no member", job));
  return *found;
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
    text += fmt::format("{}{}", text.empty() ? "" : ", ", id);
  return (jobs.size() == 1 ? "job " : "jobs ") + text;
}

std::string company_text(const std::vector<JobId>& others) {
  return others.empty() ? "" : "computes with " + jobs_text(others);
}

namespace {

constexpr std::size_t kMostJobs = 3;
constexpr std::size_t kMostOptions = 4;

std::string options_text(const std::vector<std::string>& options) {
  std::string text;
  for (std::size_t i = 0; i < std::min(options.size(), kMostOptions); ++i)
    text += (i == 0 ? "" : ", ") + options[i];
  return text + (options.size() > kMostOptions ? ", …" : "");
}

std::string unlike_text(const JobEntry& job, const std::vector<const JobEntry*>& others) {
  std::string text = "no job that waited was alike: ";
  for (std::size_t i = 0; i < std::min(others.size(), kMostJobs); ++i) {
    text.append(i == 0 ? "" : "; ").append(jobs_text({others[i]->id}));
    text.append(" differs in ").append(options_text(differences(job, *others[i])));
  }
  return text + (others.size() > kMostJobs ? "; …" : "");
}

}  // namespace

std::vector<std::string> differences(const JobEntry& a, const JobEntry& b) {
  std::vector<std::string> names;
  const auto differs = [&](std::string_view option) {
    if (std::ranges::find(names, option) == names.end()) names.emplace_back(option);
  };
  if (a.spec.model != b.spec.model || a.fingerprint != b.fingerprint)
    differs(wire::kJobOptions.model);
  wire::for_each_field([&](const wire::RequestField& field, auto member) {
    if (field.batched == wire::Batched::alike && a.spec.request.*member != b.spec.request.*member)
      differs(field.option);
  });
  if (a.spec.request.negative_prompts.empty() != b.spec.request.negative_prompts.empty())
    differs(wire::kRequestFields.negative_prompts.option);
  if (a.plan.lora_fingerprints != b.plan.lora_fingerprints)
    differs(wire::kRequestFields.loras.option);
  if (a.plan.request.refill_steps != b.plan.request.refill_steps)
    differs(wire::kRequestFields.refill_steps.option);
  if (a.spec.priority != b.spec.priority) differs(wire::kJobOptions.priority);
  if (a.spec.elastic != b.spec.elastic) differs(wire::kJobOptions.elastic);
  if (!(a.spec.parallelism == b.spec.parallelism) || a.plan.degrees != b.plan.degrees ||
      a.plan.stages != b.plan.stages)
    names.emplace_back("its degrees");
  if (names.empty()) names.emplace_back("another setting");
  return names;
}

std::string why_not_batched(const JobEntry& job, const std::vector<const JobEntry*>& others,
                            std::int64_t max_pictures, std::int64_t places) {
  if (!job.spec.may_batch) return "";
  if (auto bar = batching_obstacle(job.spec.request, max_pictures); !bar.empty()) return bar;
  if (job.batching.alone) return "the batch that it was in has failed";
  if (job.course.boundary) return "it goes on from a step that it had come to before";
  std::vector<const JobEntry*> willing;
  std::copy_if(others.begin(), others.end(), std::back_inserter(willing),
               [](const JobEntry* other) { return can_batch(*other); });
  if (!can_batch(job) || willing.empty()) return "no other job that may batch waited when it began";
  std::vector<const JobEntry*> waiting{&job};
  std::copy_if(willing.begin(), willing.end(), std::back_inserter(waiting),
               [&](const JobEntry* other) { return alike(job, *other); });
  if (waiting.size() == 1) return unlike_text(job, willing);
  const auto next = jobs_text({waiting[1]->id});
  if (companions(waiting, max_pictures, places).size() > 1)
    return "a batch with " + next + " would need more memory, or a longer message, than there is";
  if (places >= static_cast<std::int64_t>(waiting.size()))
    return "those that waited could begin side by side on idle actors";
  return fmt::format(
      "with {} it would have more than the {} pictures that a batch has at most (--max-batch of "
      "the cluster)",
      next, max_pictures);
}

}  // namespace troupe::jobs
