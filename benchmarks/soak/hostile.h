#pragma once
#include "benchmarks/soak/load.h"

namespace troupe::soak {

/// Does to the controller what a stranger and a bad client can, until then: noise, connections that
/// say nothing, requests that nobody can fulfil, jobs by the dozen that are cancelled at once. What
/// is bad must be refused with a reason. At times it opens more connections than the controller has
/// descriptors; the controller must live, and answer again when they are gone.
void harass(const SoakCluster& cluster, Counts& counts, Faults& faults, Clock::time_point end,
            unsigned seed);

}  // namespace troupe::soak
