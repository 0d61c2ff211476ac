#include "client/cli/table.h"

#include <algorithm>
#include <cstdio>

namespace troupe::cli {
namespace {

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

void add_line(std::string& out, const Row& row, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    line += row[i];
    line.append(widths[i] - width_of(row[i]) + 2, ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + "\n";
}

}  // namespace

std::string table(const Row& heads, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const std::string& head : heads)
    widths.push_back(width_of(head));
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths.at(i) = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  add_line(out, heads, widths);
  for (const Row& row : rows)
    add_line(out, row, widths);
  return out;
}

std::string bytes_text(std::uint64_t bytes) {
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

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(std::max(0.0, seconds));
  char text[64];
  if (seconds < 10) {
    std::snprintf(text, sizeof text, "%.1f s", std::max(0.0, seconds));
  } else if (whole < 60) {
    std::snprintf(text, sizeof text, "%lld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%lld min %lld s", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld h %lld min", whole / 3600, whole % 3600 / 60);
  }
  return text;
}

std::string shorten(const std::string& text, std::size_t length) {
  std::string line = text;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (width_of(line) <= length) return line;
  std::size_t characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (begins_character(line[i]) && ++characters == length) return line.substr(0, i) + "…";
  }
  return line;
}

}  // namespace troupe::cli
