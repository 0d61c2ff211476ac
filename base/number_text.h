#pragma once
#include <charconv>
#include <concepts>
#include <string>

namespace troupe {

/// A number for messages: the shortest text that reads back as the same value, "0.5" and not
/// "0.500000"; whole numbers without an exponent. Infinities and NaN are "inf", "-inf" and "nan".
template <std::floating_point T>
std::string number_text(T value) {
  constexpr T kWhole = 1e15;
  if (value > -kWhole && value < kWhole && value == static_cast<T>(static_cast<long long>(value)))
    return std::to_string(static_cast<long long>(value));
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

}  // namespace troupe
