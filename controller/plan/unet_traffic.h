#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "controller/plan/traffic.h"

namespace troupe::plan {

/// What ranks send until the latents are done: the text, guided branches' predictions, and under
/// `stage` what patches tell each other, which `by_layer` tells by kind of layer.
std::vector<RankTraffic> unet_traffic(const Plan& plan, const spec::ModelSpec& model);

/// Bytes that one rank tells other patches in a step of a kind, by kind of layer.
struct StepTraffic {
  std::string steps;  ///< "synchronous", "stale" or "last"
  int count = 0;      ///< of such steps
  std::map<std::string, std::uint64_t> by_layer;
};
/// Empty where nobody shares the patches.
std::vector<StepTraffic> unet_step_traffic(const Plan& plan, const spec::ModelSpec& model,
                                           int rank);

}  // namespace troupe::plan
