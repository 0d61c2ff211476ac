#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// One rank's weights, what it keeps from step to step and an estimate of activations.
ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank);

}  // namespace troupe::plan
