#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Sets the groups of a plan whose degrees, decoders and stages stand: along the mesh's axes, the
/// edges between stages, and those that captions, branches and decoded rows travel in.
void set_groups(Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
