#include "models/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdexcept>

namespace troupe::models {
namespace {

constexpr const char* kWord = "\\p{L}\\p{N}_";
constexpr const char* kPythonSpace =
    "\\x{09}-\\x{0d}\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
    "\\x{202f}\\x{205f}\\x{3000}";

/// Returns the text that replaces a backslash and `escape`, inside brackets or outside; "" for an
/// escape that is PCRE2's own.
std::string class_of(char escape, bool bracketed) {
  const std::string word = kWord;
  const std::string space = kPythonSpace;
  switch (escape) {
    case 'd':
      return "\\p{Nd}";
    case 'D':
      return "\\P{Nd}";
    case 'w':
      return bracketed ? word : "[" + word + "]";
    case 's':
      return bracketed ? space : "[" + space + "]";
    case 'W':
      return bracketed ? "" : "[^" + word + "]";
    case 'S':
      return bracketed ? "" : "[^" + space + "]";
    case 'b':
      if (bracketed) return "";
      return "(?:(?<=[" + word + "])(?![" + word + "])|(?<![" + word + "])(?=[" + word + "]))";
    default:
      return "";
  }
}

std::string with_python_classes(std::string_view pattern) {
  std::string out;
  bool bracketed = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const auto own = class_of(pattern[++i], bracketed);
      out += own.empty() ? std::string{c, pattern[i]} : own;
      continue;
    }
    if (c == '[') bracketed = true;
    if (c == ']') bracketed = false;
    out += c;
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR units(const std::string& text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Pattern::Pattern(std::string_view pattern, std::string replacement)
    : replacement_(std::move(replacement)) {
  const auto source = with_python_classes(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(units(source), source.size(), PCRE2_UTF, &error, &offset, nullptr));
  if (!code_) {
    throw std::invalid_argument("[pattern] " + source + ": " + message_of(error) + " at " +
                                std::to_string(offset));
  }
}

std::string Pattern::replace_all(const std::string& text) const {
  std::string out(text.size() + 64, '\0');
  const std::uint32_t options = PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
  for (;;) {
    PCRE2_SIZE length = out.size();
    const int result = pcre2_substitute(code_.get(), units(text), text.size(), 0, options, nullptr,
                                        nullptr, units(replacement_), replacement_.size(),
                                        reinterpret_cast<PCRE2_UCHAR*>(out.data()), &length);
    if (result >= 0) {
      out.resize(length);
      return out;
    }
    if (result != PCRE2_ERROR_NOMEMORY || length <= out.size()) {
      throw std::runtime_error("[clean_caption] a prompt of " + std::to_string(text.size()) +
                               " bytes cannot be cleaned: " + message_of(result));
    }
    out.resize(length);
  }
}

std::vector<std::string_view> Pattern::find_all(std::string_view text) const {
  struct FreeMatch {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  std::vector<std::string_view> found;
  for (PCRE2_SIZE at = 0; at < text.size();) {
    const int result =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                    at == 0 ? 0 : PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw std::runtime_error("[pattern] a text of " + std::to_string(text.size()) +
                               " bytes cannot be searched: " + message_of(result));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    if (ends[1] == ends[0]) throw std::runtime_error("[pattern] matches an empty text");
    found.push_back(text.substr(ends[0], ends[1] - ends[0]));
    at = ends[1];
  }
  return found;
}

}  // namespace troupe::models
