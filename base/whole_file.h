#pragma once
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace troupe {

/// Writes a file whole or not at all, by default for its owner only. A link or a pipe that somebody
/// has put in its way is taken away. Answers why it cannot be written, or "".
std::string write_whole(const std::filesystem::path& path, std::string_view text,
                        mode_t mode = 0600);

}  // namespace troupe
