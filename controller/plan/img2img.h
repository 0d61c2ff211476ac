#pragma once
#include "controller/plan/plan.h"
#include "models/spec/scheduler_config.h"

namespace troupe::plan {

/// Returns how many of `steps` a picture to begin with leaves out at this strength, as diffusers'
/// pipelines count them: of flow-matching models ⌊steps − steps · strength⌋, of others steps −
/// ⌊steps · strength⌋.
int skipped_steps(int steps, double strength, bool flow);

/// Fills in steps, guidance scale and strength where the request leaves them to the model.
void set_defaults(wire::ImageRequest& request, const spec::ModelSpec& model);

/// The sampler that a request runs.
spec::SchedulerConfig sampler_config(const wire::ImageRequest& request,
                                     const spec::ModelSpec& model);

/// Turns the steps that are asked for into the calls of the model that are computed: as many as the
/// sampler makes, without those that a picture to begin with leaves out. Holds that picture against
/// the model. Refuses as make_plan does.
void set_calls(Plan& plan, const spec::ModelSpec& model);

/// Takes those calls from a plan of the same request and model for another mesh: a schedule costs
/// up to 0.1 s, and no degree changes it.
void take_calls(Plan& plan, const Plan& same);

/// Refuses guidance_rescale where the model's pipeline has none.
void check_rescale(Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
