#pragma once
#include <vector>

#include "controller/plan/plan.h"

namespace troupe::plan {

/// Estimates what each world rank of the plan will hold, in bytes, from shapes alone. Weights and
/// K,V are exact, but that float32 weights on a CPU are packed in panels, whose last one may be
/// padded, and that captions count as long as they may be.
std::vector<ActorMemory> estimate_memory(const Plan& plan, const spec::ModelSpec& model);

/// Returns one rank's weights, what it keeps from step to step and an estimate of activations, in
/// bytes.
ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank);

}  // namespace troupe::plan
