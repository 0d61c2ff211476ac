#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace troupe::actors {

/// Highest resident set of this process since `reset_peak_memory`, in bytes (VmHWM). Source:
/// proc(5).
std::uint64_t peak_memory_bytes();
/// Starts the high-water mark anew from what is resident now. Without effect where the kernel does
/// not allow it.
void reset_peak_memory();
/// Returns the bytes that are free on the device for whoever comes first: for a GPU in its own
/// memory, for a CPU in its host's (available_memory, also for `root`). Nothing if the number
/// cannot be told.
std::optional<std::uint64_t> available_memory_bytes(at::Device device,
                                                    const std::filesystem::path& root = "/");
/// Puts the bytes into a hello's attributes, as "memory". A number that cannot be told is left out,
/// because "0" means a full device.
void tell_memory(std::optional<std::uint64_t> bytes,
                 std::map<std::string, std::string>& attributes);
/// Number of times since the process began that LibTorch had to hand what it kept back to the
/// device, because an allocation had failed. 0 for a CPU.
std::int64_t cache_flushes(at::Device device);
/// Hands freed memory that the allocator keeps back to the system; called after weights came or
/// went.
void return_free_memory();

}  // namespace troupe::actors
