#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "controller/hosts/numa.h"

namespace troupe::cluster {

/// Returns the CPUs that the calling thread may use, ascending: its affinity within its control
/// group's cpuset. None where the kernel does not say.
std::vector<int> allowed_cpus();

/// Binds the calling thread, and what the thread spawns for good, to these CPUs alone while the
/// object lives; with none of them, or where the kernel refuses, the thread runs where it ran
/// before.
class OnCpus {
 public:
  explicit OnCpus(const std::vector<int>& cpus);
  ~OnCpus();
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

  /// Returns why the kernel refused; "" when it did not.
  const std::string& error() const { return error_; }

 private:
  std::vector<int> before_;  // empty = nothing was changed
  std::string error_;
};

/// The nodes below sys/devices/system/node of `root` ("/", or a tree of a test's own), by number;
/// none where the kernel shows none. Throws std::runtime_error naming the file: what is no list of
/// CPUs, or a CPU of two nodes.
std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& root);

/// The GPUs below proc/driver/nvidia/gpus of `root` with their nodes from sys/bus/pci/devices; none
/// without a driver. Throws std::runtime_error naming the file.
std::vector<LocalGpu> read_gpus(const std::filesystem::path& root);

}  // namespace troupe::cluster
