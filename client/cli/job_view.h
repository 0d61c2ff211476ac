#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/client.h"

namespace troupe::cli {

/// A line a job. Within `width` characters (0 = no limit, and nothing is cut here) columns that say
/// nothing are left out and long cells cut; only then the last line says how to see more of a job,
/// by `command`.
std::string jobs_table(const std::vector<JobInfo>& jobs, std::size_t width,
                       const std::string& command);

/// So many rows a list shows unless another number is asked for.
inline constexpr std::size_t kShownRows = 200;
/// "200 of 10000 jobs; `troupe jobs --skip 200` shows more": what a list that is not whole says
/// at its end. "" where it is. `next`: the command that does, "" where none does.
std::string shown_text(std::size_t shown, std::size_t all, const std::string& what,
                       const std::string& next);

/// All that the controller tells of a job, a line a field, long ones on several lines.
std::string job_text(const JobInfo& job, std::size_t width);

/// Those with that number, or all for 0. Throws CommandError where there is none of that number.
std::vector<JobInfo> chosen_jobs(std::vector<JobInfo> jobs, std::uint64_t id);

}  // namespace troupe::cli
