#pragma once
#include "controller/gateway/tools.h"
#include "transport/wire/client_messages.h"

namespace troupe::gateway {

/// The jobs that this user may see, for `troupe jobs`.
wire::JobList job_list(const Tools& tools, const control::ClientUser& user);
/// For `troupe status`. What failed of late is for those who may see everybody's jobs.
wire::ClusterStatus cluster_status(const ClusterFacts& facts, const Tools& tools,
                                   const control::ClientUser& user);

}  // namespace troupe::gateway
