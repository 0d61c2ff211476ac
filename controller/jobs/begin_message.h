#pragma once
#include "controller/deployments/deployments.h"
#include "controller/jobs/job_table.h"
#include "transport/wire/actor_messages.h"

namespace troupe::jobs {

/// Makes the message that tells the actor of a rank that the job begins there, at its first step or
/// at its boundary. Pure.
wire::BeginJob begin_message(const JobEntry& job, const std::string& name,
                             const cluster::Deployment& deployment, int rank);

}  // namespace troupe::jobs
