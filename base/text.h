#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// A number with its noun, for messages: "1 actor", "2 actors".
template <std::integral T>
std::string counted(T number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

/// Returns bytes as text: "1.25 GB", "830 MB", "12 kB"; of 1000, as --memory-limit counts; four
/// digits.
std::string bytes_text(std::uint64_t bytes);
/// Returns a span that was measured or is expected, in the unit that suits it: "35 ms", "2.41 s",
/// "3.5 min", "1.2 h"; "?" where it is not finite.
std::string seconds_text(double seconds);
/// Returns a span that goes on, for tables: "4.2 s", "35 s", "3 min 20 s", "2 h 5 min".
std::string duration_text(double seconds);
/// Returns the words to choose from as text: "exact, pipefusion or distrifusion".
std::string choices_text(const std::vector<std::string>& words);
/// Returns an error's text without the tags of the rooms that it comes from, which are for logs:
/// "job 1: [read_model] x: no such folder" has one.
std::string without_rooms(const std::string& text);
/// Returns the last name of a path, also of "DIR/" and "DIR/.".
std::string last_name(const std::string& path);

/// Returns whether `text` is well-formed UTF-8: no overlong forms, no surrogates, nothing beyond
/// U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace troupe
