#include "client/cli/verbs/starting.h"

#include <iostream>
#include <stdexcept>

#include "controller/hosts/capacity.h"

namespace troupe::cli {
namespace {

constexpr int kSeconds = 120;
constexpr int kSecondsAnActor = 5;

}  // namespace

void check_crowding(int actors, int threads_per_actor, const std::string& device) {
  const auto capacity = cluster::local_capacity();
  if (const auto why = cluster::too_crowded(actors, capacity)) throw std::runtime_error(*why);
  if (const auto what = cluster::crowding(actors, threads_per_actor, device, capacity))
    std::cerr << "troupe: warning: " << *what << std::endl;
}

std::chrono::seconds ready_deadline(int actors) {
  return std::chrono::seconds(kSeconds +
                              kSecondsAnActor * actors / cluster::local_capacity().cores);
}

}  // namespace troupe::cli
