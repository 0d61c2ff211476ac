#include "controller/gateway/tools.h"

#include <algorithm>
#include <thread>

namespace troupe::gateway {

plan::Machine Tools::machine_for(const ClusterFacts& facts,
                                 const wire::ImageRequest& request) const {
  if (machine) return machine(request.weight_dtype);
  const auto actors = static_cast<int>(std::max<std::size_t>(1, members.living_count()));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return plan::machine_here(facts.device, actors, cores);
}

}  // namespace troupe::gateway
