#pragma once
#include <optional>
#include <string>
#include <vector>

namespace troupe::cluster {

/// A GPU as its driver describes it.
struct LocalGpu {
  std::string bus_id;  // PCI, 0000:18:00.0
  std::string uuid;    // GPU-…
  std::string model;
  int node = -1;  // NUMA; -1 = not known

  bool operator==(const LocalGpu&) const = default;
};

/// Settings of a process's environment for the GPUs that CUDA shows it.
struct CudaView {
  std::optional<std::string> visible = {};  // CUDA_VISIBLE_DEVICES
  std::string order = {};                   // CUDA_DEVICE_ORDER
};

/// Returns the GPUs as CUDA counts them: by bus where it was told so or where they are of one
/// model, and only those that are visible. Throws std::invalid_argument where the order cannot be
/// told: several models and CUDA's own order of speed, parts of GPUs (MIG). Pure.
std::vector<LocalGpu> in_cuda_order(std::vector<LocalGpu> gpus, const CudaView& view);

}  // namespace troupe::cluster
