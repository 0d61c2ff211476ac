#pragma once
#include <string>

#include "client/cli/options.h"
#include "transport/wire/request_fields.h"
#include "troupe/client.h"

namespace troupe::cli {

/// The options of this group that come from the table of a request's fields, in its order.
/// `heading`: of the help's part.
void add_field_options(Options& app, ImageRequest& request, wire::Group group,
                       const std::string& heading);

}  // namespace troupe::cli
