#pragma once
#include <optional>

#include "troupe/client.h"

namespace troupe::client {

/// Why a request's picture to start from cannot be sent: other formats than PNG are named.
std::optional<Error> check_init_image(const ImageRequest& request);

}  // namespace troupe::client
