#pragma once
#include <string>

#include "models/spec/model_spec.h"
#include "transport/wire/job.h"
#include "transport/wire/job_field.h"

namespace troupe::plan {

using wire::JobField;

/// A request or degrees that cannot be: one line naming field, value and reason.
[[noreturn]] inline void refuse(wire::JobField field, const std::string& why) {
  throw wire::BadField(field, "[plan] " + why);
}

/// Checks what can be said of a request and its degrees without the model, by
/// transport/wire/request_rules.h. Throws BadField.
void check(const wire::ImageRequest& request, const wire::Parallelism& degrees);

/// Checks the text that a request brings along against what the model takes, and sets the number
/// of text tokens by it. `encodes_negative`: the negative text is none of it. Throws
/// std::invalid_argument naming the tensor.
void set_prompt_embeds(wire::ImageRequest& request, const spec::ModelSpec& model,
                       bool encodes_negative);

}  // namespace troupe::plan
