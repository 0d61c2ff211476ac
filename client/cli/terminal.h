#pragma once
#include <cstddef>

namespace troupe::cli {

/// Columns of the terminal that a file descriptor is, such as STDOUT_FILENO; 0 where it is none or
/// does not say.
std::size_t terminal_columns(int descriptor);

/// Its rows, likewise.
std::size_t terminal_rows(int descriptor);

}  // namespace troupe::cli
