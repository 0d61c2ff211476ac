#include "client/cli/terminal.h"

#include <sys/ioctl.h>

namespace troupe::cli {

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::size_t terminal_rows(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
}

}  // namespace troupe::cli
