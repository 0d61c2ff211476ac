#include "controller/gateway/tools.h"

#include <algorithm>
#include <thread>

#include "controller/gateway/permissions.h"

namespace troupe::gateway {

plan::Machine Tools::machine_for(const ClusterFacts& facts,
                                 const wire::ImageRequest& request) const {
  if (machine) return machine(request.weight_dtype);
  const auto actors = static_cast<int>(std::max<std::size_t>(1, members.living_count()));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return plan::machine_here(facts.device, actors, cores);
}

jobs::JobEntry* Tools::job_for(control::PeerId peer, const wire::Header& header,
                               jobs::JobId id) const {
  auto* job = table.find(id);
  const auto user = server.user(peer);
  if (job && may_see(user, *job)) return job;
  server.reply(peer, header,
               job ? wire::Failure{wire::FailureCode::refused, job_refusal(user, id)}
                   : wire::Failure{wire::FailureCode::not_found,
                                   "job " + std::to_string(id) + " is not known here"});
  return nullptr;
}

}  // namespace troupe::gateway
