#pragma once
#include <vector>

#include "controller/mesh/mesh.h"
#include "controller/plan/machine.h"

namespace troupe::plan {

/// Cost for a rank of sending to the members of its group, at the group's worst placed rank.
struct LinkCost {
  double latency = 0;
  double seconds_per_byte = 0;  // seconds a byte that goes to all other members in equal parts

  double seconds(double bytes) const { return bytes > 0 ? latency + bytes * seconds_per_byte : 0; }
};

/// Returns the machine's host that each rank lies on, as a cluster would place it
/// (mesh/placement.h). With more ranks than devices the last host takes the rest.
std::vector<int> hosts_of_ranks(const mesh::Degrees& degrees, const Machine& machine);

/// The ways of all groups of a mesh that is placed so. What leaves a host shares that host's link
/// with everybody there who sends along the same axis.
struct LinkCosts {
  LinkCost ulysses, ring, tp, cfg, stage, heads;
  LinkCost edge, feedback;  // between the stages
};

LinkCosts link_costs_of(const mesh::Degrees& degrees, const Machine& machine);

}  // namespace troupe::plan
