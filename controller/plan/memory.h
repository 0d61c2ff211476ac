#pragma once
#include <vector>

#include "controller/plan/plan.h"

namespace troupe::plan {

/// What each world rank of the plan will hold, in bytes, from shapes alone. Weights count in the
/// compute type where it differs from the stored one.
std::vector<ActorMemory> estimate_memory(const Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
