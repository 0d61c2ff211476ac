#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace troupe::gateway {

/// Writes a file whole or not at all, for its owner only: prompts are in it. A link or a pipe that
/// somebody has put in its way is taken away. Answers why it cannot be written, or "".
std::string write_whole(const std::filesystem::path& path, std::string_view text);

}  // namespace troupe::gateway
