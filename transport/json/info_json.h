#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "troupe/client.h"

namespace troupe {

// Actors, jobs and hosts as `troupe … --json`, the console and HTTP tell them; null is what is not
// known.

nlohmann::json to_json(const ActorInfo& actor);

/// Returns a job. Its degrees are not known while they are automatic, its steps while there are 0.
nlohmann::json to_json(const JobInfo& job);

/// Host of a cluster, with what its actors are together.
struct HostInfo {
  int actors = 0;
  int ready = 0;  // able to compute
  std::uint64_t restarts = 0;
  std::uint64_t memory_bytes = 0;  // 0 = not known
  std::set<std::string> devices;
  bool has_controller = false;
};
/// Hosts by their names.
using Hosts = std::map<std::string, HostInfo>;

/// Adds the hosts of a cluster: the controller's, and those of actors.
void add_hosts(const ClusterInfo& cluster, Hosts& hosts);
/// Returns a list of hosts.
nlohmann::json to_json(const Hosts& hosts);

}  // namespace troupe
