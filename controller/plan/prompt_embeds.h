#pragma once
#include "models/spec/model_spec.h"
#include "transport/wire/job.h"

namespace troupe::plan {

/// Checks the text that a request brings along against what the model takes, and sets the number
/// of text tokens by it. Throws std::invalid_argument naming the tensor.
void set_prompt_embeds(wire::ImageRequest& request, const spec::ModelSpec& model);

}  // namespace troupe::plan
