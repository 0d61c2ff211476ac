#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/jobs/job_table.h"

namespace troupe::jobs {

/// Returns why a job of such a request computes by itself in a cluster whose batches have at most
/// `max_pictures`, whoever waits beside it; "" where it need not.
std::string batching_obstacle(const wire::ImageRequest& request, std::int64_t max_pictures);

/// True when the job may compute with others at all: it allows it, waits, has no boundary to go on
/// from, begins with noise, has no step cache and has not been in a batch that failed.
bool can_batch(const JobEntry& job);

/// True when two jobs that can batch are alike in everything but prompts, seed and whose they are.
bool alike(const JobEntry& a, const JobEntry& b);

/// Chooses the jobs that compute as one with the first of those that wait, in their order and
/// itself included: the next that are alike, as long as all have at most `max_pictures`, and no
/// more than what falls to one batch where `places` jobs could begin side by side. One job alone
/// where there is no company.
std::vector<const JobEntry*> companions(const std::vector<const JobEntry*>& waiting,
                                        std::int64_t max_pictures, std::int64_t places);

/// Returns the degrees and stages that a job is planned for now: for an elastic job perhaps not
/// those that were asked for.
wire::Parallelism parallelism_of(const JobEntry& job);

/// Combines the jobs' requests: prompts one job after another, and the seed of each picture.
wire::ImageRequest combined_request(const std::vector<const JobEntry*>& jobs);

/// Makes the batch of these jobs: the first one's terms, this plan. The batch has no number yet.
BatchEntry batch_of(const std::vector<const JobEntry*>& jobs, plan::Plan plan);

/// Returns a job's part in its batch; throws std::out_of_range where it was never in it.
const BatchMember& member_of(const BatchEntry& batch, JobId job);

/// Returns a member's pictures among those of one dp replica, counted in the batch. Empty where the
/// member has none there.
wire::RowRange share_of_replica(const BatchMember& member, wire::RowRange replica);

/// Returns the bytes of a replica's [n, …] tensor that are the member's pictures.
std::string cut_pictures(const std::string& bytes, wire::RowRange replica, wire::RowRange own);

/// Returns "computes with jobs 3, 5".
std::string company_text(const std::vector<JobId>& others);

/// Returns "job 3", "jobs 3, 5".
std::string jobs_text(const std::vector<JobId>& jobs);

/// Returns why a job begins by itself although it may batch, for its client: something about the
/// job, about those `others` that wait beside it and are not paused, or about what there is for a
/// batch. "" where it does not ask for a batch. `max_pictures` and `places` as `companions` takes
/// them.
std::string why_not_batched(const JobEntry& job, const std::vector<const JobEntry*>& others,
                            std::int64_t max_pictures, std::int64_t places);

/// Returns the options of the command line by which two jobs differ that are not alike.
std::vector<std::string> differences(const JobEntry& a, const JobEntry& b);

}  // namespace troupe::jobs
