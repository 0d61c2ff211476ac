#pragma once
#include <vector>

#include "controller/mesh/mesh.h"

namespace troupe::mesh {

/// Places each rank on a host and returns, by rank, an index into `rooms`, the actors that each
/// host has for them. As many as can be of the world, then of replicas, guidance branches, stages,
/// ring blocks, ulysses and tp groups lie inside a host whole, the larger ones first; each goes
/// where the one before it went while there is room, else to the smallest host that takes all that
/// is left, else to the roomiest. So the axes that exchange most cross hosts last, however uneven
/// these are. Throws std::invalid_argument where the rooms are too few.
std::vector<int> place_on_hosts(const Degrees& degrees, std::vector<int> rooms);

}  // namespace troupe::mesh
