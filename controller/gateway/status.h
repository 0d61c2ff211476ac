#pragma once
#include "controller/gateway/tools.h"
#include "transport/wire/client_messages.h"

namespace troupe::gateway {

/// Returns a page of the jobs that this user may see, for `troupe jobs`.
wire::JobList job_list(const Tools& tools, const control::ClientUser& user,
                       const wire::ListJobs& asked);
/// Returns the cluster's status for `troupe status`. Recent failures are for those who may see
/// everybody's jobs.
wire::ClusterStatus cluster_status(const ClusterFacts& facts, const Tools& tools,
                                   const control::ClientUser& user, const wire::GetStatus& asked);

}  // namespace troupe::gateway
