#pragma once
#include "transport/wire/job.h"

namespace troupe::plan {

/// Checks everything that can be said of a request without its model. Refuses with one line naming
/// field, value and reason (std::invalid_argument).
void check_request(const wire::ImageRequest& request);

}  // namespace troupe::plan
