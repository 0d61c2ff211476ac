#pragma once
#include "models/spec/model_spec.h"
#include "transport/wire/job.h"

namespace troupe::plan {

/// Checks the text that a request brings along against what the model takes, and sets the number
/// of text tokens by it. `encodes_negative`: the negative text is none of it. Throws
/// std::invalid_argument naming the tensor.
void set_prompt_embeds(wire::ImageRequest& request, const spec::ModelSpec& model,
                       bool encodes_negative);

}  // namespace troupe::plan
