#include "models/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <vector>

namespace troupe::models {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kCapitalSigma = 0x03A3;
constexpr char32_t kSmallSigma = 0x03C3;
constexpr char32_t kFinalSigma = 0x03C2;
constexpr char32_t kCapitalIWithDot = 0x0130;
constexpr char32_t kDotAbove = 0x0307;
constexpr char32_t kInsideWords[] = {'\'',   '.',    ':',    0x00B7, 0x0387, 0x055F,
                                     0x05F4, 0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                     0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};

/// Letters that have a case or are one of a pair.
bool is_cased(char32_t value) {
  const auto point = static_cast<utf8proc_int32_t>(value);
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return value == 0xAA || value == 0xBA || utf8proc_tolower(point) != point ||
             utf8proc_toupper(point) != point;
  }
}

/// Returns whether a character may stand between letters of a word: marks, and the punctuation that
/// Unicode's word breaks keep inside one.
bool is_case_ignorable(char32_t value) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::ranges::find(kInsideWords, value) != std::end(kInsideWords);
  }
}

bool is_final_sigma(const std::vector<char32_t>& text, std::size_t at) {
  std::size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1]))
    --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  std::size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after]))
    ++after;
  return after == text.size() || !is_cased(text[after]);
}

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

std::string normal_form(std::string_view text, utf8proc_option_t form) {
  // utf8proc up to 2.8 loses the vowel U+11A7 behind a syllable; nothing composes with it.
  constexpr std::string_view kVowel = "\u11a7";
  if (const auto at = text.find(kVowel); at != std::string_view::npos)
    return normal_form(text.substr(0, at), form).append(kVowel) +
           normal_form(text.substr(at + kVowel.size()), form);
  const std::string valid = valid_utf8(text);
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(bytes_of(valid), static_cast<utf8proc_ssize_t>(valid.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (bytes < 0) throw std::runtime_error("[normal_form] " + std::string(utf8proc_errmsg(bytes)));
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(bytes)};
}

/// Characters that Unicode got after version 9.0 and that move or change in its normal forms: marks
/// of a combining class, what has a canonical decomposition, and what stands in one. First and last
/// of each run, up to version 18.0.
struct CharacterRun {
  char32_t first, last;
};
constexpr CharacterRun kLaterCharacters[] = {
    {0x5c8, 0x5c9},     {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},
    {0x9fe, 0x9fe},     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},
    {0x1715, 0x1715},   {0x1abf, 0x1af0},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4},
    {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf},
    {0x10ef0, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11382, 0x11385}, {0x1138b, 0x1138b},
    {0x1138e, 0x1138e}, {0x11390, 0x11391}, {0x113b8, 0x113b8}, {0x113bb, 0x113bb},
    {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113c9}, {0x113ce, 0x113d0},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x1611e, 0x16129},
    {0x1612f, 0x1612f}, {0x16d63, 0x16d63}, {0x16d67, 0x16d6a}, {0x16ff0, 0x16ff1},
    {0x1d127, 0x1d128}, {0x1d250, 0x1d252}, {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f},
    {0x1d280, 0x1d281}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3},
    {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5}};

bool is_later(char32_t value) {
  const auto* run = std::ranges::lower_bound(kLaterCharacters, value, {}, &CharacterRun::last);
  return run != std::end(kLaterCharacters) && value >= run->first;
}

/// Returns the normal form in which later characters are letters that nothing moves across.
std::string form_of_tokenizers(std::string_view text, utf8proc_option_t form) {
  std::string made;
  std::size_t begin = 0;  // of what is not normalized yet
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (is_later(point.value)) {
      made += normal_form(text.substr(begin, at - begin), form);
      made += text.substr(at, point.bytes);
      begin = at + point.bytes;
    }
    at += point.bytes;
  }
  return made + normal_form(text.substr(begin), form);
}

bool is_stripped(char32_t value) {
  return is_white_space(value) || (value >= 0x1C && value <= 0x1F);
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  utf8proc_int32_t value = 0;
  const utf8proc_ssize_t bytes = utf8proc_iterate(
      bytes_of(text.substr(at)), static_cast<utf8proc_ssize_t>(text.size() - at), &value);
  if (bytes <= 0) return {kReplacement, 1};
  return {static_cast<char32_t>(value), static_cast<std::size_t>(bytes)};
}

void append_utf8(std::string& text, char32_t value) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(value), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    append_utf8(result, point.value);
    at += point.bytes;
  }
  return result;
}

bool is_white_space(char32_t value) {
  return (value >= 0x09 && value <= 0x0D) || value == 0x20 || value == 0x85 || value == 0xA0 ||
         value == 0x1680 || (value >= 0x2000 && value <= 0x200A) || value == 0x2028 ||
         value == 0x2029 || value == 0x202F || value == 0x205F || value == 0x3000;
}

namespace {

std::string lower_case(std::string_view text, bool by_letter) {
  std::vector<char32_t> points;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    points.push_back(point.value);
    at += point.bytes;
  }
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i] == kCapitalIWithDot) {
      append_utf8(result, 'i');
      append_utf8(result, kDotAbove);
    } else if (points[i] == kCapitalSigma && !by_letter) {
      append_utf8(result, is_final_sigma(points, i) ? kFinalSigma : kSmallSigma);
    } else {
      append_utf8(result, static_cast<char32_t>(
                              utf8proc_tolower(static_cast<utf8proc_int32_t>(points[i]))));
    }
  }
  return result;
}

}  // namespace

bool is_word_character(char32_t value) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return value == 0x200C || value == 0x200D;  // joiners
  }
}

std::string lower_case(std::string_view text) {
  return lower_case(text, false);
}

std::string lower_case_by_letter(std::string_view text) {
  return lower_case(text, true);
}

std::string nfc(std::string_view text) {
  return normal_form(text, UTF8PROC_COMPOSE);
}

std::string tokenizers_nfc(std::string_view text) {
  return form_of_tokenizers(text, UTF8PROC_COMPOSE);
}

std::string tokenizers_nfd(std::string_view text) {
  return form_of_tokenizers(text, UTF8PROC_DECOMPOSE);
}

std::string usual_width(char32_t value) {
  const bool has_width = value == 0x3000 || (value >= 0xFF01 && value <= 0xFFEE);
  utf8proc_int32_t parts[4] = {static_cast<utf8proc_int32_t>(value)};
  utf8proc_ssize_t count = 1;
  if (has_width) {
    constexpr auto kForm = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    int boundary = 0;
    count = utf8proc_decompose_char(parts[0], parts, std::ssize(parts), kForm, &boundary);
  }
  std::string text;
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(text, static_cast<char32_t>(parts[i]));
  return text;
}

std::string_view strip(std::string_view text) {
  std::size_t begin = text.size();
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (!is_stripped(point.value)) {
      begin = std::min(begin, at);
      end = at + point.bytes;
    }
    at += point.bytes;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string normal_caption(std::string_view text) {
  return std::string(strip(lower_case(text)));
}

}  // namespace troupe::models
