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
/// Bytes that are free on the device for whoever comes first: of a GPU its own memory, of a CPU its
/// host's (available_memory, also for `root`). Nothing where it cannot be told.
std::optional<std::uint64_t> available_memory_bytes(at::Device device,
                                                    const std::filesystem::path& root = "/");
/// Says so in a hello, as "memory". What cannot be told is left out: "0" is a full device.
void tell_memory(std::optional<std::uint64_t> bytes,
                 std::map<std::string, std::string>& attributes);
/// How often LibTorch had to hand what it kept back to the device, because an allocation had
/// failed: since the process began. 0 of a CPU.
std::int64_t cache_flushes(at::Device device);
/// Hands freed memory that the allocator keeps back to the system; after weights came or went.
void return_free_memory();

}  // namespace troupe::actors
