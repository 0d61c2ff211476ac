#include "controller/jobs/why_not_batched.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/format.h"
#include "controller/jobs/batching.h"
#include "transport/wire/request_fields.h"

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
