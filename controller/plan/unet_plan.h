#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "controller/plan/traffic.h"
#include "models/spec/model_spec.h"

namespace troupe::plan {

/// Refuses, by field and reason, what the model's kind of network cannot do: of a U-Net stages,
/// shards of the weights and K,V that are predicted, of a transformer modes of group norms and of
/// exchanges. Throws std::invalid_argument.
void check_network(const Plan& plan, const spec::ModelSpec& model);

/// Fills in a U-Net's patches and who computes them: one micro-step a step, in which each sequence
/// rank has a run of patches; with method exact one patch each. Refuses more patches than rows of
/// latents, and fewer than ranks.
void set_unet_patches(Plan& plan);

/// One rank's weights, what it keeps from step to step and an estimate of activations.
ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank);

/// What ranks send: the text, guided branches' predictions, and under `stage` what patches tell
/// each other, which `by_layer` tells by kind of layer.
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
