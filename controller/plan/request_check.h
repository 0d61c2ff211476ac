#pragma once
#include <string>
#include <vector>

#include "transport/wire/job.h"

namespace troupe::plan {

/// Checks everything that can be said of a request without its model. Refuses with one line naming
/// field, value and reason (std::invalid_argument).
void check_request(const wire::ImageRequest& request);

/// Returns all texts of a request, the negative ones included.
std::vector<std::string> texts_of(const wire::ImageRequest& request);

}  // namespace troupe::plan
