#pragma once
#include <chrono>
#include <cstddef>
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

}  // namespace troupe::cli
