#pragma once
#include <c10/core/Device.h>

#include <map>
#include <string>

namespace troupe::actors {

/// Measures for some 0.1 s (0.2 s where the last cache has more than 32 MiB) what the device
/// computes and what a transfer to another actor of this host costs, and says so in a hello as
/// "measured.NAME", in SI units: float_flops, half_flops (of a GPU), attention_flops, bandwidth,
/// launch, link_latency and link_bandwidth (of a CPU; between two threads over shm). The best of a
/// few short tries each; on one thread by its own clock, so that neighbours that start at the same
/// time do not count. What cannot be measured is left out and named in "measured.failed". Never
/// throws for that.
void tell_speed(at::Device device, std::map<std::string, std::string>& attributes);

}  // namespace troupe::actors
