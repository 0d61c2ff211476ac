#include "models/text/unicode.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

namespace troupe::models {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kCapitalSigma = 0x03A3;
constexpr char32_t kSmallSigma = 0x03C3;
constexpr char32_t kFinalSigma = 0x03C2;
constexpr char32_t kCapitalIWithDot = 0x0130;
constexpr char32_t kDotAbove = 0x0307;

struct CaseRange {
  char32_t first;
  char32_t last;
  std::uint32_t stride;
  std::int32_t delta;
};

/// Simple lower-case mappings beyond ASCII of Unicode 14, as runs of equal distance.
constexpr CaseRange kLowerCase[] = {
#include "models/text/lower_case_table.inc"
};

char32_t simple_lower_case(char32_t value) {
  if (value < 0x80) return value >= 'A' && value <= 'Z' ? value + 32 : value;
  const auto* range = std::ranges::lower_bound(kLowerCase, value, {}, &CaseRange::last);
  if (range == std::end(kLowerCase) || value < range->first) return value;
  if ((value - range->first) % range->stride != 0) return value;
  return static_cast<char32_t>(static_cast<std::int64_t>(value) + range->delta);
}

bool is_lower_case(char32_t value) {
  if (value < 0x80) return value >= 'a' && value <= 'z';
  return std::ranges::any_of(kLowerCase, [value](const CaseRange& range) {
    const auto upper = static_cast<std::int64_t>(value) - range.delta;
    return upper >= range.first && upper <= range.last && (upper - range.first) % range.stride == 0;
  });
}

/// Letters with a case that no simple mapping reaches: ligatures, phonetic letters and the like.
bool is_cased_without_mapping(char32_t value) {
  return value == 0xAA || value == 0xBA || value == 0xDF || value == kCapitalIWithDot ||
         value == 0x0138 || value == 0x0149 || value == 0x01F0 || value == 0x0390 ||
         value == 0x03B0 || value == 0x0587 || (value >= 0x0234 && value <= 0x0239) ||
         (value >= 0x0250 && value <= 0x02B8) || (value >= 0x1D00 && value <= 0x1DBF) ||
         (value >= 0xFB00 && value <= 0xFB06) || (value >= 0xFB13 && value <= 0xFB17);
}

bool is_cased(char32_t value) {
  return simple_lower_case(value) != value || is_lower_case(value) ||
         is_cased_without_mapping(value);
}

bool is_case_ignorable(char32_t value) {
  return (value >= 0x0300 && value <= 0x036F) || value == '\'' || value == '.' || value == ':' ||
         value == 0x00B7 || value == 0x2018 || value == 0x2019 ||
         (value >= 0x200B && value <= 0x200F) || (value >= 0x2060 && value <= 0x2064) ||
         (value >= 0xFE00 && value <= 0xFE0F) || value == 0xFEFF || value == 0x00AD ||
         value == '^' || value == '`';
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

bool is_stripped(char32_t value) {
  return is_white_space(value) || (value >= 0x1C && value <= 0x1F);
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  std::size_t bytes = 0;
  char32_t value = 0;
  char32_t least = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    bytes = 2, value = lead & 0x1FU, least = 0x80;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    bytes = 3, value = lead & 0x0FU, least = 0x800;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    bytes = 4, value = lead & 0x07U, least = 0x10000;
  } else {
    return {kReplacement, 1};
  }
  if (text.size() - at < bytes) return {kReplacement, 1};
  for (std::size_t i = 1; i < bytes; ++i) {
    const unsigned char next = byte(at + i);
    if ((next & 0xC0U) != 0x80U) return {kReplacement, 1};
    value = value << 6U | (next & 0x3FU);
  }
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < least || value > 0x10FFFF || surrogate) return {kReplacement, 1};
  return {value, bytes};
}

void append_utf8(std::string& text, char32_t value) {
  const auto add = [&text](char32_t byte) { text += static_cast<char>(byte); };
  if (value < 0x80) {
    add(value);
  } else if (value < 0x800) {
    add(0xC0U | value >> 6U);
    add(0x80U | (value & 0x3FU));
  } else if (value < 0x10000) {
    add(0xE0U | value >> 12U);
    add(0x80U | (value >> 6U & 0x3FU));
    add(0x80U | (value & 0x3FU));
  } else {
    add(0xF0U | value >> 18U);
    add(0x80U | (value >> 12U & 0x3FU));
    add(0x80U | (value >> 6U & 0x3FU));
    add(0x80U | (value & 0x3FU));
  }
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
      append_utf8(result, simple_lower_case(points[i]));
    }
  }
  return result;
}

}  // namespace

std::string lower_case(std::string_view text) {
  return lower_case(text, false);
}

std::string lower_case_by_letter(std::string_view text) {
  return lower_case(text, true);
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
