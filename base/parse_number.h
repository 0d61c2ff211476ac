#pragma once
#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace troupe {

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

}  // namespace troupe
