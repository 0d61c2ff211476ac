#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace troupe {

/// Bytes of main memory that the kernel expects to be able to give (MemAvailable), within the
/// limits of this process's control groups; where it says only the one or the other, that. 0 is
/// "nothing left"; nothing where it says neither. `root` holds proc and sys. Source: proc(5).
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");

}  // namespace troupe
