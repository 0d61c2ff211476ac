#pragma once
#include <string>

namespace troupe::cli {

enum class Colour { none, red, green, yellow, cyan, bold, dim };

/// Returns whether a file descriptor such as STDOUT_FILENO shows colours: a terminal that is not
/// dumb, unless NO_COLOR is set (https://no-color.org).
bool has_colours(int descriptor);

/// Returns the text in that colour where the file descriptor shows colours, else as it is.
std::string coloured(const std::string& text, Colour colour, int descriptor);

}  // namespace troupe::cli
