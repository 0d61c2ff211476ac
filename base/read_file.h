#pragma once
#include <string>

namespace troupe {

/// The file's bytes. Throws std::runtime_error naming the file when it cannot be read or is over
/// `limit`.
std::string read_file(const std::string& path, std::size_t limit);

}  // namespace troupe
