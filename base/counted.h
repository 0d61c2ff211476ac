#pragma once
#include <concepts>
#include <string>

namespace troupe {

/// A number with its noun, for messages: "1 actor", "2 actors".
template <std::integral T>
std::string counted(T number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace troupe
