#pragma once
#include <c10/core/Device.h>

#include <exception>
#include <optional>
#include <string>

namespace troupe::actors {

/// cudaErrorIllegalAddress, which a fault that is injected is.
inline constexpr int kIllegalAddress = 700;

/// Beginning of the message of a process that leaves because of its device, before the cause.
inline constexpr const char* kLostDevice = "its device cannot be used any more: ";

/// Returns whether, after this CUDA error (a cudaError_t), the process can no longer compute on its
/// GPU: CUDA's documentation says of the code that the process must be relaunched, or that device
/// or context are beyond use. Pure. Source: CUDA Runtime API, cudaError (driver_types.h).
bool sticks(int cuda_error);

/// Returns the reason, in one line, why this process can no longer compute on its device; nothing
/// if it can. The reason comes from the error, or from the device itself, which is asked without
/// waiting, whatever the error was. For the thread that computes.
std::optional<std::string> lost_device(const std::exception& error, at::Device device);

}  // namespace troupe::actors
