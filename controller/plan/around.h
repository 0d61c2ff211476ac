#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Steps of `steps` that a picture to begin with leaves out at this strength, as diffusers'
/// pipelines count them: of flow-matching models ⌊steps − steps · strength⌋, of others
/// steps − ⌊steps · strength⌋.
int skipped_steps(int steps, double strength, bool flow);

/// Holds a request's picture to begin with against the model and takes the steps that it leaves out
/// from the request's. Refuses as make_plan does.
void set_start(Plan& plan, const spec::ModelSpec& model);

/// Refuses guidance_rescale where the model's pipeline has none.
void check_rescale(Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
