#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/jobs/job_table.h"
#include "transport/wire/actor_messages.h"

namespace troupe::jobs {

/// Seconds of a job's phases, as the controller saw them.
struct PhaseSeconds {
  double queued = 0;
  double loading = 0;
  double text = 0;
  double denoising = 0;
  double decoding = 0;
  double total = 0;
  std::int32_t steps = 0;  // steps that were denoised by this controller
};

/// Makes the one JSON document that says how a job's pictures came about: enough to make them
/// again, and what it cost. A job of a batch is given with the batch's plan, and with its
/// `members`: the figures are the batch's. The warnings of the job's plan come first, then those of
/// its actors, then `warnings`. Texts that are no UTF-8 come out with U+FFFD in their place.
std::string make_report(const JobEntry& job, const cluster::Deployment& deployment,
                        const PhaseSeconds& seconds,
                        const std::vector<wire::ActorJobStats>& stats_by_rank,
                        std::uint64_t blob_bytes, const std::vector<std::string>& warnings,
                        std::span<const BatchMember> members = {});

/// Adds a warning to the report of a job that has one.
void add_warning(JobEntry& job, const std::string& warning);

/// Makes the message that tells watchers of a job that has ended.
wire::JobFinished finished_message(const JobEntry& job);

}  // namespace troupe::jobs
