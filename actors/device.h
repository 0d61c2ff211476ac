#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <optional>
#include <string>

namespace troupe::actors {

/// Loads LibTorch's CUDA half, for `device`, as errors name it. It must come before anything that
/// asks LibTorch about CUDA, a seed that is set included: the first question settles for the life
/// of the process whether there is any. Throws std::runtime_error saying what is missing (a driver,
/// a GPU, the library), or that it came too late.
void open_cuda_half(const std::string& device);

/// The device that `name` means: "cpu", "cuda" or "cuda:N". LibTorch's CUDA half is loaded here and
/// only for a CUDA device, so that one troupe-actor serves machines with and without GPUs. Throws
/// std::runtime_error as `open_cuda_half` does, or saying that there is no such GPU.
at::Device open_device(const std::string& name);

/// Returns the driver's name of a GPU, such as "NVIDIA H100 80GB HBM3"; "" for a CPU, and if the
/// driver names none.
std::string device_name(at::Device device);

/// Makes `device` the calling thread's current one; on a CPU nothing. Every thread of an actor that
/// may touch CUDA does this first: a thread's current device is GPU 0 otherwise, and anything that
/// makes that one current costs a context there for each actor of the machine.
void make_current(at::Device device);

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
