#pragma once
#include <string>
#include <vector>

#include "controller/gateway/tools.h"
#include "transport/wire/client_messages.h"

namespace troupe::gateway {

/// The jobs that this user may see, for `troupe jobs`.
wire::JobList job_list(const Tools& tools, const control::ClientUser& user);
/// For `troupe status`. `recent_failures` are for those who may see everybody's jobs.
wire::ClusterStatus cluster_status(const ClusterFacts& facts, const Tools& tools,
                                   const control::ClientUser& user,
                                   const std::vector<std::string>& recent_failures);

}  // namespace troupe::gateway
