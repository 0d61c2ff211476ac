#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace troupe {

/// Returns the bytes that this process's control groups still let it have: the least over its group
/// and all above it, of versions 1 and 2. What files keep in memory counts as free, for the kernel
/// gives it back. Nothing where no group has a limit. `root` holds proc and sys. Sources:
/// cgroups(7), the kernel's guides to memory controllers v1 and v2.
std::optional<std::uint64_t> left_in_control_groups(const std::filesystem::path& root = "/");

}  // namespace troupe
