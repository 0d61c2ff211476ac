#include "client/cli/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <string>

#include "base/files.h"
#include "base/numbers.h"

namespace troupe::cli {

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::size_t terminal_rows(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
}

std::vector<int> terminal_attributes(std::chrono::milliseconds wait) {
  using Clock = std::chrono::steady_clock;
  const FileHandle tty(open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios before{};
  if (!tty || tcgetpgrp(tty.get()) != getpgrp() || tcgetattr(tty.get(), &before) != 0) return {};
  termios raw = before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  int typed = 0;
  std::string answer;
  constexpr std::string_view kAsk = "\x1b[c", kBegin = "\x1b[?";
  if (tcsetattr(tty.get(), TCSANOW, &raw) == 0 && ioctl(tty.get(), FIONREAD, &typed) == 0 &&
      typed == 0 &&
      write(tty.get(), kAsk.data(), kAsk.size()) == static_cast<ssize_t>(kAsk.size())) {
    const auto deadline = Clock::now() + wait;
    pollfd ready{tty.get(), POLLIN, 0};
    char piece[64];
    while (answer.empty() || answer.back() != 'c') {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) break;
      const ssize_t got = read(tty.get(), piece, sizeof piece);
      if (got <= 0 || answer.size() > sizeof piece) break;
      answer.append(piece, static_cast<std::size_t>(got));
    }
  }
  tcsetattr(tty.get(), TCSANOW, &before);
  std::vector<int> attributes;
  const auto begin = answer.find(kBegin);
  if (begin == std::string::npos || answer.back() != 'c') return attributes;
  for (std::size_t at = begin + kBegin.size(), end = 0; at < answer.size(); at = end + 1) {
    end = answer.find_first_of(";c", at);
    attributes.push_back(parse_number<int>(answer.substr(at, end - at)).value_or(0));
  }
  return attributes;
}

}  // namespace troupe::cli
