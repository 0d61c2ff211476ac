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

std::string nfd(std::string_view text) {
  return normal_form(text, UTF8PROC_DECOMPOSE);
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
