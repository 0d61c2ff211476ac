#pragma once
#include <c10/core/Device.h>

#include <exception>
#include <optional>
#include <string>

namespace troupe::actors {

/// cudaErrorIllegalAddress, which a fault that is injected is.
inline constexpr int kIllegalAddress = 700;

/// What a process says that leaves for it, before the cause.
inline constexpr const char* kLostDevice = "its device cannot be used any more: ";

/// Whether after this CUDA error (a cudaError_t) the process can compute on its GPU no more: CUDA's
/// documentation says of the code that the process must be relaunched, or that device or context
/// are beyond use. Pure. Source: CUDA Runtime API, cudaError (driver_types.h).
bool sticks(int cuda_error);

/// Why this process can compute on its device no more, in one line: the error says so, or the
/// device itself, which is asked without waiting, whatever the error was. Nothing where it can. For
/// the thread that computes.
std::optional<std::string> lost_device(const std::exception& error, at::Device device);

}  // namespace troupe::actors
