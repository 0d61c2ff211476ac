#pragma once

#include <memory>
#include <string>

#include "transport/tensor/backend.h"

namespace troupe::tensor::nccl {

/// Returns why NCCL cannot be used; empty if it was built in, its library loads, and a CUDA device
/// is there.
std::string why_unavailable();

/// Throws std::runtime_error with `why_unavailable()`.
std::unique_ptr<Device> make_device(const DeviceOptions& options);

}  // namespace troupe::tensor::nccl
