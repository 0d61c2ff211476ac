#include "controller/plan/per_image_settings.h"

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/refuse.h"

namespace troupe::plan {
namespace {

std::size_t pictures_of(const wire::ImageRequest& request) {
  return request.prompts.size() * static_cast<std::size_t>(request.images_per_prompt);
}

}  // namespace

std::vector<wire::SeedRun> seed_runs(const wire::ImageRequest& request) {
  if (request.picture_seeds.empty())
    return {{static_cast<std::int32_t>(pictures_of(request)), request.seed}};
  std::vector<wire::SeedRun> runs;
  for (const auto seed : request.picture_seeds)
    runs.push_back({1, seed});
  return runs;
}

std::vector<std::string> negatives_of_pictures(const wire::ImageRequest& request) {
  const auto pictures = pictures_of(request);
  const auto& own = request.negative_prompts;
  if (own.empty()) return std::vector<std::string>(pictures, request.negative_prompt.value_or(""));
  if (own.size() == pictures) return own;
  std::vector<std::string> negatives;
  for (std::size_t picture = 0; picture < pictures; ++picture)
    negatives.push_back(own.at(picture / static_cast<std::size_t>(request.images_per_prompt)));
  return negatives;
}

void set_per_image_settings(wire::ImageRequest& request) {
  const auto pictures = pictures_of(request);
  const auto given = request.picture_seeds.size();
  if (given > 0 && given != pictures) {
    refuse(JobField::picture_seeds,
           fmt::format("seeds are given for {}, but there {}{} (prompts × n)",
                       counted(given, "picture"), pictures == 1 ? "is " : "are ", pictures));
  }
  if (given > 0 && request.seeds.empty()) request.seeds = seed_runs(request);
  const auto negatives = request.negative_prompts.size();
  if (negatives == 0) return;
  if (!request.negative_prompt.value_or("").empty())
    refuse(JobField::negative_prompt, "negative prompt and negative prompts do not go together");
  if (negatives != pictures && negatives != request.prompts.size()) {
    refuse(JobField::negative_prompts,
           fmt::format("negative prompts are {}, but there {}{} and {}", negatives,
                       request.prompts.size() == 1 ? "is " : "are ",
                       counted(request.prompts.size(), "prompt"), counted(pictures, "picture")));
  }
  request.negative_prompts = negatives_of_pictures(request);
}

}  // namespace troupe::plan
