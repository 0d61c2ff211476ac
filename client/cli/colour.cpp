#include "client/cli/colour.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace troupe::cli {
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

}  // namespace troupe::cli
