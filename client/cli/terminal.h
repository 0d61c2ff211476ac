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

/// What the terminal of this process answers when it is asked for its attributes (DA1), such as 4:
/// it shows sixels. Nothing where it does not answer in time, there is no terminal, the process is
/// in its background, or keys were typed that the answer would stand behind.
std::vector<int> terminal_attributes(std::chrono::milliseconds wait);

}  // namespace troupe::cli
