#pragma once

#include <functional>
#include <memory>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/weight_loader.h"
#include "models/spec/model_plugin.h"
#include "models/spec/model_spec.h"

namespace troupe::models {

/// Makes a stage of a transformer that a model plugin's other half has read. Only the weights of
/// `part` are read from `weights`.
using MakeNetwork = std::function<std::unique_ptr<DiffusionTransformer>(
    const spec::UserTransformer& of, const spec::ModelSpec& model, const StagePart& part,
    const WeightLoader& weights, at::ScalarType compute, at::Device device)>;

/// Returns the makers of transformers that plugins have brought, by class.
spec::UserMakers<MakeNetwork>& user_networks();

}  // namespace troupe::models
