#pragma once

namespace troupe::models {

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns the value of a hexadecimal digit; -1 for any other character.
inline int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace troupe::models
