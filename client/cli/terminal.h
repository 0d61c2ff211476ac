#pragma once
#include <cstddef>
#include <vector>

namespace troupe::cli {

/// Returns the columns of the terminal that a file descriptor is, such as STDOUT_FILENO; 0 if it is
/// no terminal or does not say.
std::size_t terminal_columns(int descriptor);

/// Returns the rows of the terminal that a file descriptor is; 0 if it is no terminal or does not
/// say.
std::size_t terminal_rows(int descriptor);

/// Asks the terminal of this process for its attributes (DA1) and returns them, such as 4: it shows
/// sixels. Waits for half a second at most. Returns nothing where there is no terminal, where the
/// process is in its background, or where keys were typed that the answer would stand behind.
std::vector<int> terminal_attributes();

}  // namespace troupe::cli
