#include "controller/service/permissions.h"

#include "base/format.h"

namespace troupe::service {

using control::ClientRole;

namespace {

std::string has_role(const control::ClientUser& user) {
  return "the key \"" + user.name + "\" has the role " + to_string(user.role);
}

}  // namespace

std::optional<std::string> role_refusal(const control::ClientUser& user, ClientRole needed) {
  if (user.role >= needed) return std::nullopt;
  return has_role(user) + ", and this needs " + to_string(needed) +
         " (`troupe keys role NAME --role ROLE`, where the cluster runs)";
}

std::optional<std::string> host_refusal(const control::ClientUser& user) {
  if (user.role < ClientRole::operate)
    return has_role(user) + ", and a host that joins needs operate";
  if (!user.name.empty() && !control::is_client_name(user.name))
    return "the key of \"" + user.name + "\" was issued by the controller, and a host that joins " +
           "needs a client's";
  return std::nullopt;
}

bool may_see(const control::ClientUser& user, const jobs::JobEntry& job) {
  return user.role >= ClientRole::all_jobs || job.client.user == user.name;
}

std::string job_refusal(const control::ClientUser& user, jobs::JobId job) {
  return fmt::format("job {} is not its own: {}", job, has_role(user));
}

jobs::JobEntry* job_for(control::Server& server, jobs::JobTable& table, control::PeerId peer,
                        const wire::Header& header, jobs::JobId id) {
  auto* job = table.find(id);
  const auto user = server.user(peer);
  if (job && may_see(user, *job)) return job;
  server.reply(peer, header,
               job ? wire::Failure{wire::FailureCode::refused, job_refusal(user, id)}
                   : wire::Failure{wire::FailureCode::not_found,
                                   fmt::format("job {} is not known here", id)});
  return nullptr;
}

}  // namespace troupe::service
