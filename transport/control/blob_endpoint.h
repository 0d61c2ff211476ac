#pragma once
#include <string>

namespace troupe::control {

/// Where a controller's blob channel is, given where its control plane is: `.blobs` beside an ipc
/// socket, the next port of a tcp one. Throws std::runtime_error when `control` is no endpoint or
/// the last port.
std::string blob_endpoint_of(const std::string& control);

}  // namespace troupe::control
