#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

namespace troupe {

/// Returns the bytes that this process's control groups still let it have: the least over its group
/// and all above it, of versions 1 and 2. What files keep in memory counts as free, for the kernel
/// gives it back. Nothing where no group has a limit. `root` holds proc and sys. Sources:
/// cgroups(7), the kernel's guides to memory controllers v1 and v2.
std::optional<std::uint64_t> left_in_control_groups(const std::filesystem::path& root = "/");

/// Returns the bytes of main memory that the kernel expects to be able to give (MemAvailable),
/// within the limits of this process's control groups; where only one of the two is known, that
/// one. 0 is "nothing left"; nothing where neither is known. `root` holds proc and sys. Source:
/// proc(5).
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");

/// "ulimit -v allows 2 GB of addresses" where this process has such a limit, which memory and the
/// stacks of threads count towards; else empty.
std::string address_limit_text();

/// Returns "no more threads can be started: WHY (LIMIT)", where LIMIT is that of addresses, if
/// there is one, else where to look.
std::string no_threads_text(const std::string& why);

/// Returns an exception's text; for std::bad_alloc, which has none, that memory ran out, and for
/// one of a thread that could not be started, that; each with the limit.
std::string text_of(const std::exception& error);

}  // namespace troupe
