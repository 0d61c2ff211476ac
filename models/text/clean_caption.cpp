#include "models/text/clean_caption.h"

#include <algorithm>

#include "models/text/html_text.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

struct Rule {
  const char* pattern;
  const char* replacement;
};

#define TROUPE_DOMAIN R"([a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/\-]*\b/?(?!@))"
#define TROUPE_FILE_ENDING "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"

constexpr Rule kAddresses[] = {
    {"<person>", "person"},
    {R"(\b(?:https?:(?:/{1,3}|[a-z0-9%])|)" TROUPE_DOMAIN ")", ""},
    {R"(\b(?:www:(?:/{1,3}|[a-z0-9%])|)" TROUPE_DOMAIN ")", ""},
};

constexpr Rule kMarkRules[] = {
    {R"(@\w+\b)", ""},
    // CJK strokes, phonetic extensions, enclosed and compatibility forms, ideographs, hexagrams
    {R"([\x{31c0}-\x{31ff}\x{3200}-\x{9fff}]+)", ""},
    {R"([\-\x{58a}\x{5be}\x{1400}\x{1806}\x{2010}-\x{2015}\x{2e17}\x{2e1a}\x{2e3a}\x{2e3b}\x{2e40})"
     R"(\x{301c}\x{3030}\x{30a0}\x{fe31}\x{fe32}\x{fe58}\x{fe63}\x{ff0d}]+)",
     "-"},
    {"[`´«»“”¨]", "\""},
    {"[‘’]", "'"},
    {"&quot;?", ""},
    {"&amp", ""},
    {R"(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})", " "},
    {R"(\d:\d\d\s+$)", ""},
    {R"(\\n)", " "},
    {R"(#\d{1,3}\b)", ""},
    {R"(#\d{5,}\b)", ""},
    {R"(\b\d{6,}\b)", ""},
    {R"(\S+\.)" TROUPE_FILE_ENDING, ""},
    {R"(["']{2,})", "\""},
    {R"(\.{2,})", " "},
    {R"([#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+)", " "},
    {R"(\s+\.\s+)", " "},
};

constexpr Rule kPhrases[] = {
    // product numbers: letters before, around or between the digits
    {R"(\b[a-zA-Z]{1,3}\d{3,15}\b)", ""},
    {R"(\b[a-zA-Z]+\d+[a-zA-Z]+\b)", ""},
    {R"(\b\d+[a-zA-Z]+\d+\b)", ""},
    {R"((?:worldwide\s+)?(?:free\s+)?shipping)", ""},
    {R"((?:free\s)?download(?:\sfree)?)", ""},
    {R"(\bclick\b\s(?:for|on)\s\w+)", ""},
    {R"(\b)" TROUPE_FILE_ENDING R"((?:\simages?)?)", ""},
    {R"(\bpage\s+\d+\b)", ""},
    {R"(\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b)", " "},
    {R"(\b\d+\.?\d*[xх×]\d+\.?\d*\b)", ""},  // the second is Cyrillic
    {R"(\b\s+:\s+)", ": "},
    {R"((\D[,./])\b)", "$1 "},
    {R"(\s+)", " "},
    {R"(^["']((?s).+)["']$)", "$1"},
    {R"(^['_,\-:;])", ""},
    {R"(['_,\-:+]$)", ""},
    {R"(^\.\S+$)", ""},
};

#undef TROUPE_DOMAIN
#undef TROUPE_FILE_ENDING

constexpr int kJoinedWords = 3;  // hyphens and underscores that a caption may keep

template <std::size_t N>
std::vector<Pattern> compile(const Rule (&rules)[N]) {
  std::vector<Pattern> patterns;
  for (const Rule& rule : rules)
    patterns.emplace_back(rule.pattern, rule.replacement);
  return patterns;
}

void apply(const std::vector<Pattern>& patterns, std::string& text) {
  for (const Pattern& pattern : patterns)
    text = pattern.replace_all(text);
}

/// "a+b%20c" to "a b c": what a browser's address line does to a text.
std::string without_percent_escapes(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool whole = text[i] == '%' && i + 2 < text.size();
    const int high = whole ? hex_value(text[i + 1]) : -1;
    const int low = whole ? hex_value(text[i + 2]) : -1;
    if (high >= 0 && low >= 0) {
      out += static_cast<char>(high << 4 | low);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return valid_utf8(out);
}

bool joins_words(char c) {
  return c == '-' || c == '_';
}

}  // namespace

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

CaptionCleaner::CaptionCleaner()
    : addresses_(compile(kAddresses)), marks_(compile(kMarkRules)), phrases_(compile(kPhrases)) {}

std::string CaptionCleaner::clean_once(std::string_view caption) const {
  const auto plain = without_percent_escapes(caption);
  std::string text = lower_case(strip(plain));
  apply(addresses_, text);
  text = html_text(text);
  apply(marks_, text);
  if (std::ranges::count_if(text, joins_words) > kJoinedWords) {
    std::ranges::replace_if(text, joins_words, ' ');
  }
  text = repair_text(text);
  for (int i = 0; i < 2; ++i)
    text = unescape_html(text, References::lenient);
  apply(phrases_, text);
  return std::string(strip(text));
}

std::string CaptionCleaner::clean(std::string_view caption) const {
  return clean_once(clean_once(caption));
}

}  // namespace troupe::models
