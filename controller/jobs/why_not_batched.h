#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/jobs/job_table.h"

namespace troupe::jobs {

/// Returns why a job begins by itself although it may batch, for its client: something about the
/// job, about those `others` that wait beside it and are not paused, or about what there is for a
/// batch. "" where it does not ask for a batch. `max_pictures` and `places` as `companions` takes
/// them.
std::string why_not_batched(const JobEntry& job, const std::vector<const JobEntry*>& others,
                            std::int64_t max_pictures, std::int64_t places);

/// Returns the options of the command line by which two jobs differ that are not alike.
std::vector<std::string> differences(const JobEntry& a, const JobEntry& b);

}  // namespace troupe::jobs
