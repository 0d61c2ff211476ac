#pragma once
#include <c10/core/Device.h>

#include <string>

namespace troupe::actors {

/// The device that `name` means: "cpu", "cuda" or "cuda:N". LibTorch's CUDA half is loaded here and
/// only for a CUDA device, so that one troupe-actor serves machines with and without GPUs. Throws
/// std::runtime_error saying what is missing: the library, a driver, or that GPU.
at::Device open_device(const std::string& name);

/// Makes `device` the calling thread's current one; on a CPU nothing. Every thread of an actor that
/// may touch CUDA does this first: a thread's current device is GPU 0 otherwise, and anything that
/// makes that one current costs a context there for each actor of the machine.
void make_current(at::Device device);

}  // namespace troupe::actors
