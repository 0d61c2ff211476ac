#pragma once
#include <string>
#include <system_error>

namespace troupe {

/// What the system calls an error number.
inline std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace troupe
