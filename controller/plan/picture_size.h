#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Height, width and frames that are computed and that come out: the model's own where the request
/// leaves them open, the bin's under resolution binning. Fills in the plan's latents and token
/// rows. Refuses as make_plan does.
void set_size(Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
