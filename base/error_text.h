#pragma once
#include <string>
#include <string_view>
#include <system_error>

namespace troupe {

/// What the system calls an error number.
inline std::string error_text(int error) {
  return std::generic_category().message(error);
}

/// Of an exception's text the part that is for people: those of c10 have a stack trace behind it.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace troupe
