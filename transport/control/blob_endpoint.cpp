#include "transport/control/blob_endpoint.h"

#include <stdexcept>

#include "base/format.h"
#include "transport/control/endpoint.h"

namespace troupe::control {

std::string blob_endpoint_of(const std::string& control) {
  const Endpoint endpoint = parse_endpoint(control);
  if (endpoint.ipc) return endpoint.text + ".blobs";
  if (endpoint.port == 0 || endpoint.port == 65535) {
    throw std::runtime_error("[control] " + control +
                             ": the port after it, for blobs, does not exist");
  }
  return fmt::format("{}{}", endpoint.text.substr(0, endpoint.text.rfind(':') + 1),
                     endpoint.port + 1);
}

}  // namespace troupe::control
