#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace troupe {

/// Names of an enumeration's values on the command line, in JSON and in the C++ API: one name per
/// value, from the value 0 on. "" is the name of the value that holds where nothing was chosen.
template <class E>
inline constexpr auto kNamesOf = nullptr;

/// An enumeration with names.
template <class E>
concept Choice = std::is_enum_v<E> && requires {
  kNamesOf<E>.size();
};

/// Returns whether the number is a value of the enumeration: one from the wire may be none.
template <Choice E>
constexpr bool is_valid(E value) {
  return static_cast<std::size_t>(value) < kNamesOf<E>.size();
}

template <Choice E>
std::string to_string(E value) {
  return std::string(kNamesOf<E>.at(static_cast<std::size_t>(value)));
}

/// Returns the value of that name; nothing where no value has it.
template <Choice E>
constexpr std::optional<E> parse_choice(std::string_view name) {
  for (std::size_t i = 0; i < kNamesOf<E>.size(); ++i)
    if (kNamesOf<E>[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

/// Returns the names that can be chosen: all but "".
template <Choice E>
std::vector<std::string> choice_words() {
  std::vector<std::string> words;
  for (const auto name : kNamesOf<E>)
    if (!name.empty()) words.emplace_back(name);
  return words;
}

}  // namespace troupe
