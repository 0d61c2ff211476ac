#include "models/text/text_repair.h"

#include <algorithm>
#include <iterator>

#include "models/text/html_entities.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

struct Ligature {
  char32_t value;
  std::string_view text;
};

constexpr Ligature kLigatures[] = {{0x0132, "IJ"}, {0x0133, "ij"}, {0x0149, "ʼn"},  {0x01C4, "DŽ"},
                                   {0x01C5, "Dž"}, {0x01C6, "dž"}, {0x01C7, "LJ"},  {0x01C8, "Lj"},
                                   {0x01C9, "lj"}, {0x01CA, "NJ"}, {0x01CB, "Nj"},  {0x01CC, "nj"},
                                   {0x01F1, "DZ"}, {0x01F2, "Dz"}, {0x01F3, "dz"},  {0xFB00, "ff"},
                                   {0xFB01, "fi"}, {0xFB02, "fl"}, {0xFB03, "ffi"}, {0xFB04, "ffl"},
                                   {0xFB05, "ſt"}, {0xFB06, "st"}};

char32_t straight_quote(char32_t value) {
  if (value == 0x02BC || (value >= 0x2018 && value <= 0x201B)) return '\'';
  return value >= 0x201C && value <= 0x201F ? U'"' : value;
}

bool is_dropped(char32_t value) {
  if (value < 0x20) return value != '\t' && value != '\n' && value != '\f' && value != '\r';
  return value == 0x7F || (value >= 0x206A && value <= 0x206F) || value == 0xFEFF ||
         (value >= 0xFFF9 && value <= 0xFFFC);
}

/// Bytes of the terminal escape at the front of `text`, ESC [ digits and semicolons, a letter; or
/// 0.
std::size_t terminal_escape(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const auto end = text.find_first_not_of("0123456789;", 2);
  if (end == std::string_view::npos) return 0;
  const char lower = static_cast<char>(text[end] | 0x20);
  return lower >= 'a' && lower <= 'z' ? end + 1 : 0;
}

void append_usual(std::string& out, char32_t value) {
  const auto* ligature = std::ranges::find(kLigatures, value, &Ligature::value);
  if (ligature != std::end(kLigatures)) {
    out += ligature->text;
  } else {
    out += usual_width(straight_quote(value));
  }
}

/// Repairs a line once.
std::string repair_once(std::string_view line, bool unescape) {
  const std::string text =
      unescape ? unescape_html(line, References::terminated) : std::string(line);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (const auto escape = terminal_escape(std::string_view(text).substr(at))) {
      at += escape;
      continue;
    }
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    const char32_t value = from_windows_1252(point.value);
    if (is_dropped(value)) continue;
    const bool breaks = value == '\r' || value == 0x2028 || value == 0x2029;
    if (value == '\r' && at < text.size() && text[at] == '\n') continue;
    append_usual(out, breaks ? U'\n' : value);
  }
  return nfc(out);
}

}  // namespace

std::string repair_text(std::string_view text) {
  std::string out;
  bool unescape = true;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string line(text.substr(at, end - at));
    unescape = unescape && line.find('<') == std::string::npos;
    for (;;) {
      auto repaired = repair_once(line, unescape);
      const bool done = repaired == line;
      line = std::move(repaired);
      if (done) break;
    }
    out += line;
    at = end;
  }
  return out;
}

}  // namespace troupe::models
