#pragma once
#include "controller/hosts/host_options.h"

namespace troupe::cluster {

/// Asks an actor process whether the last device that the host's actors are on is there; a CPU
/// always is. Throws std::runtime_error naming what is missing. Takes as long as an actor takes to
/// start, a minute at most.
void check_device(const HostOptions& host);

}  // namespace troupe::cluster
