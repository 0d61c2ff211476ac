#pragma once
#include <filesystem>
#include <vector>

#include "controller/hosts/gpu_order.h"
#include "controller/hosts/numa.h"

namespace troupe::cluster {

/// The nodes below sys/devices/system/node of `root` ("/", or a tree of a test's own), by number;
/// none where the kernel shows none. Throws std::runtime_error naming the file: what is no list of
/// CPUs, or a CPU of two nodes.
std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& root);

/// The GPUs below proc/driver/nvidia/gpus of `root` with their nodes from sys/bus/pci/devices; none
/// without a driver. Throws std::runtime_error naming the file.
std::vector<LocalGpu> read_gpus(const std::filesystem::path& root);

}  // namespace troupe::cluster
