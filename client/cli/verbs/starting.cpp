#include "client/cli/verbs/starting.h"

#include <iostream>

#include "controller/cluster/crowding.h"

namespace troupe::cli {
namespace {

constexpr int kSeconds = 120;
constexpr int kSecondsAnActor = 5;

}  // namespace

void warn_of_crowding(int actors, int threads_per_actor, const std::string& device) {
  for (const auto& what :
       cluster::crowding(actors, threads_per_actor, device, cluster::this_ground()))
    std::cerr << "troupe: warning: " << what << std::endl;
}

std::chrono::seconds ready_deadline(int actors) {
  return std::chrono::seconds(kSeconds + kSecondsAnActor * actors / cluster::this_ground().cores);
}

}  // namespace troupe::cli
