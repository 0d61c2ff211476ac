#pragma once

#include <memory>
#include <string>

#include "transport/tensor/backend.h"

// What libtroupe_nccl.so exports. It is loaded only where a device is asked for, so that actors on
// a CPU need no CUDA library.
extern "C" {

/// Returns why there is no CUDA device to use; null if there is one.
const char* troupe_nccl_why_unavailable();

/// A new device, which the caller owns; throws as `make_device` does.
troupe::tensor::Device* troupe_nccl_make_device(const troupe::tensor::DeviceOptions& options);
}

namespace troupe::tensor::nccl {

/// Returns why NCCL cannot be used; empty if it was built in, its library loads, and a CUDA device
/// is there.
std::string why_unavailable();

/// Throws std::runtime_error with `why_unavailable()`.
std::unique_ptr<Device> make_device(const DeviceOptions& options);

}  // namespace troupe::tensor::nccl
