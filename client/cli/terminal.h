#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe::cli {

/// Returns the columns of the terminal that a file descriptor is, such as STDOUT_FILENO; 0 if it is
/// no terminal or does not say.
std::size_t terminal_columns(int descriptor);

/// Returns the rows of the terminal that a file descriptor is; 0 if it is no terminal or does not
/// say.
std::size_t terminal_rows(int descriptor);

/// Asks the terminal of this process for its attributes (DA1) and returns them; 4 means that it
/// shows sixels. Returns nothing if it does not answer in time, if there is no terminal, if the
/// process is in the background, or if keys were typed that the answer would stand behind.
std::vector<int> terminal_attributes(std::chrono::milliseconds wait);

enum class Colour { none, red, green, yellow, cyan, bold, dim };

/// Returns whether a file descriptor such as STDOUT_FILENO shows colours: a terminal that is not
/// dumb, unless NO_COLOR is set (https://no-color.org).
bool has_colours(int descriptor);

/// Returns the text in that colour where the file descriptor shows colours, else as it is.
std::string coloured(const std::string& text, Colour colour, int descriptor);

using Row = std::vector<std::string>;

/// Treatment of cells in columns that had to become narrower.
enum class Overflow { wrap, shorten };

/// Colours of a table: the heads are bold, and each row has its colour in one column.
struct ColumnColours {
  std::size_t column = 0;
  std::vector<Colour> of_rows;
};

/// Columns two spaces apart, as wide as their widest cell; the heads first. Every line ends with
/// \n. No line has more than `width` characters (0 = no limit): the widest columns give way, but
/// not below what their heads need while others can. With `colours`, where standard output shows
/// colours, heads are bold and cells have theirs.
std::string table(const Row& heads, std::vector<Row> rows, std::size_t width = 0,
                  Overflow overflow = Overflow::wrap, const ColumnColours* colours = nullptr);
/// Returns the number of characters in the table's longest line.
std::size_t table_width(const Row& heads, const std::vector<Row>& rows);

/// Breaks the text into lines of at most `width` characters, at least one line, between words where
/// that goes.
std::vector<std::string> wrapped(std::string text, std::size_t width);

/// Returns how many characters a line of standard output may have: the terminal's columns, 0 (no
/// limit) elsewhere.
std::size_t output_width();

/// Formats bytes for a column: "812 MB", "1.4 GB"; "-" for 0.
std::string bytes_cell(std::uint64_t bytes);
/// Replaces by "?" what a terminal would obey or be misled by (control characters but \n and tabs,
/// marks that turn the direction of writing, bytes that are not UTF-8).
std::string printable(const std::string& text);
/// Same as `printable`, on one line, so that no text from a file or a peer can pass for lines of
/// ours.
std::string on_one_line(const std::string& text);
/// Returns at most `length` characters, on one line, with … where something was left out.
std::string shorten(const std::string& text, std::size_t length);

/// Prints what went wrong on standard error, as "troupe: WHAT".
void say(const std::string& what);

/// Returns a text as one word of a shell's line, in quotes where it needs them.
std::string shell_word(const std::string& text);

}  // namespace troupe::cli
