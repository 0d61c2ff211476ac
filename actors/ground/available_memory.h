#pragma once
#include <cstdint>
#include <filesystem>

namespace troupe::ground {

/// Bytes of main memory that the kernel expects to be able to give (MemAvailable), within the
/// limits of this process's control groups. 0 where it cannot be told. `root` holds proc and sys.
/// Source: proc(5).
std::uint64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace troupe::ground
