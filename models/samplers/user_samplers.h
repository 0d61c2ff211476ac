#pragma once

#include <functional>
#include <memory>
#include <string>

#include "models/samplers/sampler.h"
#include "models/spec/model_plugin.h"

namespace troupe::models {

/// Makes a sampler for a run; `json` is the text of scheduler_config.json.
using MakeSampler =
    std::function<std::unique_ptr<Sampler>(const std::string& json, const SamplerRun& run)>;

/// Returns the makers of samplers that plugins have brought, by short name.
spec::UserMakers<MakeSampler>& user_samplers();

}  // namespace troupe::models
