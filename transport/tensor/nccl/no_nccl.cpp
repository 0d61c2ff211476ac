#include "transport/tensor/nccl/load_nccl.h"

namespace troupe::tensor::nccl {

std::string why_unavailable() {
  return "this build has no NCCL: nccl.h was not found";
}

std::unique_ptr<Device> make_device(const DeviceOptions&) {
  throw std::runtime_error("[tensor.nccl] not available: " + why_unavailable());
}

}  // namespace troupe::tensor::nccl
