#include "client/cli/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/numbers.h"
#include "base/text.h"

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

namespace {

const char* sgr(Colour colour) {
  switch (colour) {
    case Colour::red:
      return "\x1b[31m";
    case Colour::green:
      return "\x1b[32m";
    case Colour::yellow:
      return "\x1b[33m";
    case Colour::cyan:
      return "\x1b[36m";
    case Colour::bold:
      return "\x1b[1m";
    case Colour::dim:
      return "\x1b[2m";
    case Colour::none:
      break;
  }
  return "";
}

}  // namespace

bool has_colours(int descriptor) {
  const char* no = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return (no == nullptr || *no == '\0') && !dumb && isatty(descriptor) == 1;
}

std::string coloured(const std::string& text, Colour colour, int descriptor) {
  if (colour == Colour::none || text.empty() || !has_colours(descriptor)) return text;
  return sgr(colour) + text + "\x1b[0m";
}

namespace {

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

using Widths = std::vector<std::size_t>;

constexpr std::size_t kBetween = 2;
constexpr std::size_t kNarrowestColumn = 6;

Widths natural_widths(const Row& heads, const std::vector<Row>& rows) {
  Widths widths;
  for (const std::string& head : heads)
    widths.push_back(width_of(head));
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths.at(i) = std::max(widths[i], width_of(row[i]));
  }
  return widths;
}

std::size_t line_width(const Widths& widths) {
  return std::accumulate(widths.begin(), widths.end(), std::size_t{0}) +
         (widths.empty() ? 0 : (widths.size() - 1) * kBetween);
}

/// Takes characters from the widest column that is wider than its floor, one by one.
void narrow(Widths& widths, const Widths& floors, std::size_t limit) {
  for (std::size_t now = line_width(widths); now > limit; --now) {
    std::size_t widest = widths.size();
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] > floors[i] && (widest == widths.size() || widths[i] > widths[widest]))
        widest = i;
    }
    if (widest == widths.size()) return;
    --widths[widest];
  }
}

Widths fitted_widths(const Row& heads, const std::vector<Row>& rows, std::size_t limit) {
  Widths widths = natural_widths(heads, rows);
  if (limit == 0) return widths;
  Widths floors;
  for (const std::string& head : heads)
    floors.push_back(std::max(width_of(head), kNarrowestColumn));
  narrow(widths, floors, limit);
  narrow(widths, Widths(widths.size(), 1), limit);
  return widths;
}

/// Bytes of the first `characters` characters.
std::size_t bytes_of(const std::string& text, std::size_t characters) {
  std::size_t at = 0;
  for (std::size_t seen = 0; at < text.size(); ++at) {
    if (begins_character(text[at]) && seen++ == characters) break;
  }
  return at;
}

void add_line(std::string& out, const Row& row, const Widths& widths,
              const std::vector<Colour>& colours) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    line += coloured(row[i], colours[i], STDOUT_FILENO);
    line.append(widths[i] - width_of(row[i]) + kBetween, ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + "\n";
}

void add_row(std::string& out, const Row& row, const Widths& widths, Overflow overflow,
             const std::vector<Colour>& colours) {
  std::vector<std::vector<std::string>> cells;
  std::size_t height = 1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (overflow == Overflow::wrap) {
      cells.push_back(wrapped(row[i], widths[i]));
    } else {
      cells.push_back({shorten(row[i], widths[i])});
    }
    height = std::max(height, cells.back().size());
  }
  for (std::size_t line = 0; line < height; ++line) {
    Row part;
    for (const auto& cell : cells)
      part.push_back(line < cell.size() ? cell[line] : "");
    add_line(out, part, widths, colours);
  }
}

}  // namespace

std::vector<std::string> wrapped(std::string text, std::size_t width) {
  std::vector<std::string> lines;
  text = on_one_line(text);
  while (width_of(text) > width) {
    const std::size_t end = bytes_of(text, width);
    const std::size_t space = text.rfind(' ', end);
    const bool between = space != std::string::npos && space > 0;
    lines.push_back(text.substr(0, between ? space : end));
    text.erase(0, between ? space + 1 : end);
  }
  lines.push_back(std::move(text));
  return lines;
}

std::string table(const Row& heads, std::vector<Row> rows, std::size_t width, Overflow overflow,
                  const ColumnColours* colours) {
  for (Row& row : rows)
    for (std::string& cell : row)
      cell = on_one_line(cell);
  const Widths widths = fitted_widths(heads, rows, width);
  std::string out;
  add_row(out, heads, widths, Overflow::shorten,
          std::vector(heads.size(), colours ? Colour::bold : Colour::none));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<Colour> of_cells(rows[i].size(), Colour::none);
    if (colours) of_cells.at(colours->column) = colours->of_rows.at(i);
    add_row(out, rows[i], widths, overflow, of_cells);
  }
  return out;
}

std::size_t table_width(const Row& heads, const std::vector<Row>& rows) {
  return line_width(natural_widths(heads, rows));
}

std::size_t output_width() {
  return terminal_columns(STDOUT_FILENO);
}

std::string bytes_cell(std::uint64_t bytes) {
  if (bytes == 0) return "-";
  char text[32];
  if (bytes < 1000'000) {
    std::snprintf(text, sizeof text, "%.0f kB", static_cast<double>(bytes) / 1e3);
  } else if (bytes < 1000'000'000) {
    std::snprintf(text, sizeof text, "%.0f MB", static_cast<double>(bytes) / 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.1f GB", static_cast<double>(bytes) / 1e9);
  }
  return text;
}

std::string printable(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t whole = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    std::size_t bytes = 1;
    while (bytes < whole && i + bytes < text.size() && !begins_character(text[i + bytes]))
      ++bytes;
    const std::string_view character(text.data() + i, bytes);
    if (!is_utf8(character)) {  // a byte that is none, or what follows it
      out += '?';
      ++i;
      continue;
    }
    const bool control = character < " " && character != "\n" && character != "\t";
    const bool second = character >= "\x7f" && character <= "\u009f";
    const bool turns = (character >= "\u202a" && character <= "\u202e") ||
                       (character >= "\u2066" && character <= "\u2069");
    const bool obeyed = control || second || turns;
    out += obeyed ? std::string_view("?") : character;
    i += bytes;
  }
  return out;
}

std::string on_one_line(const std::string& text) {
  std::string line = printable(text);
  for (char& c : line)
    if (c == '\n' || c == '\t') c = ' ';
  return line;
}

std::string shorten(const std::string& text, std::size_t length) {
  std::string line = on_one_line(text);
  if (width_of(line) <= length) return line;
  std::size_t characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (begins_character(line[i]) && ++characters == length) return line.substr(0, i) + "…";
  }
  return line;
}

void say(const std::string& what) {
  std::cerr << coloured("troupe:", Colour::red, STDERR_FILENO) << " " << what << std::endl;
}

std::string shell_word(const std::string& text) {
  const auto is_plain = [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view("_-+=.,:/@%").find(static_cast<char>(letter)) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
  std::string word = "'";
  for (const char letter : text)
    word += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return word + "'";
}

}  // namespace troupe::cli
