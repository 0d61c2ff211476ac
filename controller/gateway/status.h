#pragma once
#include "controller/gateway/tools.h"
#include "transport/wire/client_messages.h"

namespace troupe::gateway {

/// A page of the jobs that this user may see, for `troupe jobs`.
wire::JobList job_list(const Tools& tools, const control::ClientUser& user,
                       const wire::ListJobs& asked);
/// For `troupe status`. What failed of late is for those who may see everybody's jobs.
wire::ClusterStatus cluster_status(const ClusterFacts& facts, const Tools& tools,
                                   const control::ClientUser& user, const wire::GetStatus& asked);

}  // namespace troupe::gateway
