#pragma once
#include <string>

namespace troupe::cluster {

/// Asks an actor process whether the last of so many devices is there, as actors of a host get
/// them: "cpu" always is. Throws std::runtime_error naming what is missing. Takes as long as an
/// actor takes to start, a minute at most.
void check_device(const std::string& device, int actors);

}  // namespace troupe::cluster
