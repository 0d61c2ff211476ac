#pragma once
#include <cstdio>
#include <string>

namespace troupe::plan {

/// Returns printf's format as a string, of at most 240 bytes.
template <class... Values>
std::string line(const char* format, Values... values) {
  char text[240];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace troupe::plan
