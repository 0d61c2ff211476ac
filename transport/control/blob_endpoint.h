#pragma once
#include <string>

namespace troupe::control {

/// Returns the endpoint of a controller's blob channel from that of its control plane: `.blobs`
/// beside an ipc socket, the next port of a tcp one. Throws std::runtime_error when `control` is no
/// endpoint or the last port.
std::string blob_endpoint_of(const std::string& control);

}  // namespace troupe::control
