#pragma once
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Refuses, by field and reason, what the model's kind of network cannot do: of a U-Net stages,
/// shards of the weights and K,V that are predicted, of a transformer modes of group norms and of
/// exchanges; and what does not go with naive patches. Throws std::invalid_argument.
void check_network(const Plan& plan, const spec::ModelSpec& model);

/// Fills in a U-Net's patches and the ranks that compute them: one micro-step a step, in which each
/// sequence rank has a run of patches; with method exact one patch each. Refuses more patches than
/// rows of latents, and fewer than ranks.
void set_unet_patches(Plan& plan);

}  // namespace troupe::plan
