#include "controller/service/tools.h"

#include <algorithm>
#include <thread>

namespace troupe::service {

Tools::InputBytes Tools::InputBytes::within(std::uint64_t memory) {
  InputBytes most;
  most.all = std::min(most.all, memory / 4);
  most.of_client = std::min(most.of_client, most.all / 2);
  most.on_same_behalf = std::min(most.on_same_behalf, most.all / 4);
  return most;
}

plan::Machine Tools::machine_for(const ClusterFacts& facts,
                                 const wire::ImageRequest& request) const {
  if (machine) return machine(request.weight_dtype);
  const auto actors = static_cast<int>(std::max<std::size_t>(1, members.living_count()));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return plan::machine_here(facts.device, actors, cores);
}

}  // namespace troupe::service
