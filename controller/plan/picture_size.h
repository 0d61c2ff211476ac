#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Sets height, width and frames that are computed and that come out: the model's own where the
/// request leaves them open, the bin's under resolution binning. Fills in the plan's latents and
/// token rows. Refuses as make_plan does.
void set_size(Plan& plan, const spec::ModelSpec& model);

/// Adds a warning that names the model's size to the plan of a picture or a video with four times
/// the pixels that the model is made for, or less than a quarter of them. Not where binning picks
/// the size, nor for a larger picture that at least half of the steps begin from. After `set_size`
/// and `set_calls`.
void warn_of_size(Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
