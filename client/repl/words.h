#pragma once
#include <stdexcept>
#include <string>
#include <vector>

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

/// Whether the text ends inside a quote, so that another line belongs to it.
bool is_open(const std::string& text);

/// The word so that split_commands gives it back as one.
std::string quoted(const std::string& word);

}  // namespace troupe::repl
