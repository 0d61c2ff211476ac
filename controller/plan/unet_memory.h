#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Returns one rank's weights, what it keeps from step to step and an estimate of activations, in
/// bytes.
ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank);

}  // namespace troupe::plan
