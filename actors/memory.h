#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace troupe::actors {

/// Highest resident set of this process since `reset_peak_memory`, in bytes (VmHWM). Source:
/// proc(5).
std::uint64_t peak_memory_bytes();
/// Starts the high-water mark anew from what is resident now. Without effect where the kernel does
/// not allow it.
void reset_peak_memory();
/// Bytes that are free on the device for whoever comes first: of a GPU its own memory, of a CPU its
/// host's (ground::available_memory). 0 where it cannot be told.
std::uint64_t available_memory_bytes(at::Device device);
/// Hands freed memory that the allocator keeps back to the system; after weights came or went.
void return_free_memory();

}  // namespace troupe::actors
