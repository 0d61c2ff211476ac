#include "models/text/clean_prompt.h"

#include "models/text/html_text.h"
#include "models/text/unicode.h"

namespace troupe::models {

std::string clean_prompt(std::string_view given) {
  std::string text = repair_text(given);
  for (int i = 0; i < 2; ++i)
    text = unescape_html(text, References::lenient);
  std::string mended;
  bool between = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool space = is_white_space(point.value);
    if (!space) {
      if (between && !mended.empty()) mended += ' ';
      mended.append(text, at, point.bytes);
    }
    between = space;
    at += point.bytes;
  }
  return mended;
}

}  // namespace troupe::models
