#include "controller/jobs/why_not_batched.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "controller/jobs/batching.h"

namespace troupe::jobs {
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
  const auto compare = [&](const char* name, const auto& of) {
    if (!(of(a) == of(b))) names.emplace_back(name);
  };
  const auto requests = [&](const char* name, auto field) {
    compare(name, [field](const JobEntry& job) { return job.spec.request.*field; });
  };
  using wire::ImageRequest;
  compare("--model",
          [](const JobEntry& job) { return std::pair(job.spec.model, job.fingerprint); });
  requests("--steps", &ImageRequest::steps);
  requests("--height", &ImageRequest::height);
  requests("--width", &ImageRequest::width);
  requests("--frames", &ImageRequest::num_frames);
  requests("--n", &ImageRequest::images_per_prompt);
  requests("--negative-prompt", &ImageRequest::negative_prompt);
  requests("--guidance", &ImageRequest::guidance_scale);
  requests("--guidance-rescale", &ImageRequest::guidance_rescale);
  requests("--sampler", &ImageRequest::sampler);
  compare("--lora", [](const JobEntry& job) {
    return std::pair(job.spec.request.loras, job.plan.lora_fingerprints);
  });
  requests("--method", &ImageRequest::method);
  requests("--patches", &ImageRequest::num_pipeline_patch);
  requests("--warmup", &ImageRequest::warmup_steps);
  compare("--refill-steps", [](const JobEntry& job) {
    return std::pair(job.spec.request.refill_steps, job.plan.request.refill_steps);
  });
  requests("--kv", &ImageRequest::kv);
  requests("--group-norm", &ImageRequest::group_norm);
  requests("--exchange", &ImageRequest::exchange);
  requests("--dtype", &ImageRequest::dtype);
  requests("--weight-dtype", &ImageRequest::weight_dtype);
  requests("--noise-dtype", &ImageRequest::noise_dtype);
  requests("--max-sequence-length", &ImageRequest::max_sequence_length);
  requests("--resolution-binning", &ImageRequest::resolution_binning);
  requests("--clean-caption", &ImageRequest::clean_caption);
  requests("--vae-tiling", &ImageRequest::vae_tiling);
  requests("--save-latents", &ImageRequest::want_latents);
  compare("--preview", [](const JobEntry& job) {
    const auto& request = job.spec.request;
    return std::pair(request.progress_interval, request.progress_content);
  });
  compare("--priority", [](const JobEntry& job) { return job.spec.priority; });
  compare("--elastic", [](const JobEntry& job) { return job.spec.elastic; });
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
  return "with " + next + " it would have more than the " + std::to_string(max_pictures) +
         " pictures that a batch has at most (--max-batch of the cluster)";
}

}  // namespace troupe::jobs
