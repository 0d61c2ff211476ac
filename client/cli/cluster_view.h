#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/terminal.h"
#include "troupe/client.h"

namespace troupe::cli {

/// Returns the colour of an actor's or a job's state in tables.
Colour state_colour(ActorState state);
Colour state_colour(JobState state);

/// Returns the rows of `troupe status` for actors (host, state, current work), fitted into `width`
/// columns (0 = no limit). Of more than `most` actors it has the first, and the number of all.
std::string actors_text(const std::vector<ActorInfo>& all, std::size_t width,
                        std::size_t most = std::string::npos);
/// Returns all that `troupe status` prints.
std::string status_text(const ClusterInfo& cluster, std::size_t width,
                        std::size_t most = std::string::npos);

/// Returns a table with a line per job. Within `width` characters (0 = no limit, and nothing is cut
/// here) columns that say nothing are left out and long cells cut; only then the last line says how
/// to see more of a job, by `command`.
std::string jobs_table(const std::vector<JobInfo>& jobs, std::size_t width,
                       const std::string& command);

/// Number of rows that a list shows unless another number is asked for.
inline constexpr std::size_t kShownRows = 200;
/// Returns the end of a list that is not whole: "200 of 10000 jobs; `troupe jobs --skip 200` shows
/// more". "" if the list is whole. `next`: the command that shows more, "" if none does.
std::string shown_text(std::size_t shown, std::size_t all, const std::string& what,
                       const std::string& next);

/// Returns all that the controller reports of a job, one line per field, long ones on several
/// lines.
std::string job_text(const JobInfo& job, std::size_t width);

/// Returns the jobs with that number, or all for 0. Throws CommandError if there is no such job.
std::vector<JobInfo> chosen_jobs(std::vector<JobInfo> jobs, std::uint64_t id);

}  // namespace troupe::cli
