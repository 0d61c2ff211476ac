#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "controller/plan/traffic.h"

namespace troupe::plan {

/// Returns the bytes that ranks send until the latents are done: the text, guided branches'
/// predictions, and under `stage` what patches tell each other, which `by_layer` has by kind of
/// layer.
std::vector<RankTraffic> unet_traffic(const Plan& plan, const spec::ModelSpec& model);

/// Bytes that one rank tells other patches in a step of a kind, by kind of layer.
struct StepTraffic {
  std::string steps;  ///< "synchronous", "stale" or "last"
  int count = 0;      ///< number of such steps
  std::map<std::string, std::uint64_t> by_layer;
};
/// Returns the bytes that a rank tells other patches; empty where nobody shares the patches.
std::vector<StepTraffic> unet_step_traffic(const Plan& plan, const spec::ModelSpec& model,
                                           int rank);

}  // namespace troupe::plan
