#pragma once
#include <optional>

#include "troupe/client.h"

namespace troupe::client {

/// Returns why a request's picture to start from, or its mask, cannot be sent: it is of another
/// format than PNG, JPEG and WebP, which is named, a PNG that is cut off or damaged, too large, or
/// does not go with the rest.
std::optional<Error> check_init_image(const ImageRequest& request);

}  // namespace troupe::client
