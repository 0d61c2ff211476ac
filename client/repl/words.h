#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "troupe/inspect.h"

namespace troupe::repl {

/// The line makes no sense: a quote that is not closed.
struct LineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Words = std::vector<std::string>;

/// A text as commands of words. Commands end at `;` and at the line's end; `#` at the beginning of
/// a word makes the rest of the line a comment. '…' keeps everything, "…" everything but \" and \\;
/// elsewhere \ keeps the next character. Square brackets keep spaces, so that `[0, 1:2]` is one
/// word. Throws LineError.
std::vector<Words> split_commands(const std::string& text);

/// The quote that the text ends inside of, so that another line belongs to it; 0 where it does not.
char open_quote(const std::string& text);
inline bool is_open(const std::string& text) {
  return open_quote(text) != 0;
}

/// A part of a word as it is typed inside `quote`, 0 being none, so that split_commands gives it
/// back. Inside '…' no ' can be typed.
std::string escaped(const std::string& part, char quote);

/// Returns words as a JSON array of arguments: a word that is JSON stands as it is, every other
/// word is a string. `5 [1, 2] "two words"` is [5,[1,2],"two words"]; for the string "5" write
/// '"5"'.
std::string call_arguments(const Words& words);

/// "[0,2:4,:,-1]" or "0,2:4" as ranges, by dimension. Throws std::invalid_argument naming what is
/// wrong with it.
std::vector<SliceRange> parse_slice(const std::string& text);

/// The values as nested brackets, a line a row of the last dimension: "[[1, 2],\n [3, 4]]".
std::string values_text(const TensorValues& values);

/// "[2, 4, 8]"; "[]" of a single number.
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace troupe::repl
