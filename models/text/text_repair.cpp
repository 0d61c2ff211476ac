#include "models/text/text_repair.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "models/text/compose.h"
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

/// What U+FF5F to U+FFEE are in their usual width, 0 where nothing. Source: Unicode's NFKC.
// clang-format off
constexpr std::uint16_t kWide[] = {
    0x2985, 0x2986, 0x3002, 0x300c, 0x300d, 0x3001, 0x30fb, 0x30f2, 0x30a1, 0x30a3, 0x30a5,
    0x30a7, 0x30a9, 0x30e3, 0x30e5, 0x30e7, 0x30c3, 0x30fc, 0x30a2, 0x30a4, 0x30a6, 0x30a8,
    0x30aa, 0x30ab, 0x30ad, 0x30af, 0x30b1, 0x30b3, 0x30b5, 0x30b7, 0x30b9, 0x30bb, 0x30bd,
    0x30bf, 0x30c1, 0x30c4, 0x30c6, 0x30c8, 0x30ca, 0x30cb, 0x30cc, 0x30cd, 0x30ce, 0x30cf,
    0x30d2, 0x30d5, 0x30d8, 0x30db, 0x30de, 0x30df, 0x30e0, 0x30e1, 0x30e2, 0x30e4, 0x30e6,
    0x30e8, 0x30e9, 0x30ea, 0x30eb, 0x30ec, 0x30ed, 0x30ef, 0x30f3, 0x3099, 0x309a, 0x1160,
    0x1100, 0x1101, 0x11aa, 0x1102, 0x11ac, 0x11ad, 0x1103, 0x1104, 0x1105, 0x11b0, 0x11b1,
    0x11b2, 0x11b3, 0x11b4, 0x11b5, 0x111a, 0x1106, 0x1107, 0x1108, 0x1121, 0x1109, 0x110a,
    0x110b, 0x110c, 0x110d, 0x110e, 0x110f, 0x1110, 0x1111, 0x1112, 0, 0, 0, 0x1161, 0x1162,
    0x1163, 0x1164, 0x1165, 0x1166, 0, 0, 0x1167, 0x1168, 0x1169, 0x116a, 0x116b, 0x116c, 0, 0,
    0x116d, 0x116e, 0x116f, 0x1170, 0x1171, 0x1172, 0, 0, 0x1173, 0x1174, 0x1175, 0, 0, 0, 0x00a2,
    0x00a3, 0x00ac, 0, 0x00a6, 0x00a5, 0x20a9, 0, 0x2502, 0x2190, 0x2191, 0x2192, 0x2193, 0x25a0,
    0x25cb,
};
// clang-format on
constexpr char32_t kFirstWide = 0xFF5F;
constexpr char32_t kWideMacron = 0xFFE3;  // the one that takes two code points

char32_t usual_width(char32_t value) {
  if (value == 0x3000) return ' ';
  if (value >= 0xFF01 && value <= 0xFF5E) return value - 0xFEE0;
  if (value < kFirstWide || value >= kFirstWide + std::size(kWide)) return value;
  const char32_t usual = kWide[value - kFirstWide];
  return usual != 0 ? usual : value;
}

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
  } else if (value == kWideMacron) {
    out += " \u0304";
  } else {
    append_utf8(out, straight_quote(usual_width(value)));
  }
}

/// One round over one line.
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
  return compose(out);
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
