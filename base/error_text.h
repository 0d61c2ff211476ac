#pragma once
#include <string>
#include <string_view>
#include <system_error>

namespace troupe {

/// Returns the system's text for an error number.
inline std::string error_text(int error) {
  return std::generic_category().message(error);
}

/// Returns the part of an exception's text that is for people: c10's have a stack trace behind it.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace troupe
