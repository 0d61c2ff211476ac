#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

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

/// The number that the whole text is, as std::from_chars reads it; nothing where it is something
/// else, has anything before or behind it (a space, a plus), or does not fit into T.
template <class T>
requires std::integral<T> || std::floating_point<T> std::optional<T> parse_number(
    std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The index of the first value that is infinite or NaN.
inline std::optional<std::size_t> first_not_finite(std::span<const float> values) {
  const auto odd = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (odd == values.end()) return std::nullopt;
  return static_cast<std::size_t>(odd - values.begin());
}

}  // namespace troupe
