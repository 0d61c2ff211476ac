#pragma once
#include <string>
#include <vector>

#include "transport/wire/job.h"

namespace troupe::plan {

/// Returns the seeds of a request that computes by itself: one run for all its pictures, or where
/// each has its own a run each.
std::vector<wire::SeedRun> seed_runs(const wire::ImageRequest& request);

/// Returns each picture's negative prompt, whether they have one together, one a prompt, or one
/// each.
std::vector<std::string> negatives_of_pictures(const wire::ImageRequest& request);

/// Checks seeds and negative prompts of single pictures, and fills in `seeds` and a negative prompt
/// for each picture where there are any. Throws std::invalid_argument.
void set_per_image_settings(wire::ImageRequest& request);

}  // namespace troupe::plan
