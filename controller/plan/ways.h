#pragma once
#include "controller/mesh/mesh.h"
#include "controller/plan/machine.h"

namespace troupe::plan {

/// What it costs a rank to send to the members of its group, at the group's worst placed rank.
struct Way {
  double latency = 0;
  double seconds_per_byte = 0;  // of bytes that go to all other members in equal parts

  double seconds(double bytes) const { return bytes > 0 ? latency + bytes * seconds_per_byte : 0; }
};

/// The ways of all groups of a mesh whose world ranks fill one host after the other. What leaves a
/// host shares that host's link with everybody there who sends along the same axis.
struct Ways {
  Way ulysses, ring, tp, cfg, stage, heads;
  Way edge, feedback;  // between the stages
};

Ways ways_of(const mesh::Degrees& degrees, const Machine& machine);

}  // namespace troupe::plan
