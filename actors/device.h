#pragma once
#include <c10/core/Device.h>

#include <string>

namespace troupe::actors {

/// The device that `name` means: "cpu", "cuda" or "cuda:N". LibTorch's CUDA half is loaded here and
/// only for a CUDA device, so that one troupe-actor serves machines with and without GPUs. Throws
/// std::runtime_error saying what is missing: the library, a driver, or that GPU.
at::Device open_device(const std::string& name);

}  // namespace troupe::actors
