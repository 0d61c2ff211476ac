#pragma once
#include <optional>
#include <string>

#include "controller/jobs/job_table.h"
#include "transport/control/keys.h"
#include "transport/control/server.h"

namespace troupe::service {

/// Returns why this user may not do what needs that role; nothing where he may. Whose job something
/// is about is another question: `job_refusal`.
std::optional<std::string> role_refusal(const control::ClientUser& user,
                                        control::ClientRole needed);

/// Returns why this user's process may not join as a host, which is given the cluster's secrets;
/// nothing where it may. Keys that the controller has issued to its own processes are not for that.
std::optional<std::string> host_refusal(const control::ClientUser& user);

/// Returns whether a job is one of those that this user may see and change.
bool may_see(const control::ClientUser& user, const jobs::JobEntry& job);
/// Returns why this user may not see or change a job that is not his.
std::string job_refusal(const control::ClientUser& user, jobs::JobId job);
/// Returns the job, if it is there and the peer may see it; else refuses the peer.
jobs::JobEntry* job_for(control::Server& server, jobs::JobTable& table, control::PeerId peer,
                        const wire::Header& header, jobs::JobId job);

}  // namespace troupe::service
