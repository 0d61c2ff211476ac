#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::models {

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns the value of a hexadecimal digit; -1 for any other character.
inline int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// Character references that `unescape_html` takes.
enum class References {
  lenient,     // as browsers do: "&lt 3", "&ltfoo", "&#65 "
  terminated,  // only those that end in a semicolon
};

/// The text of a named reference whose name is in lower case, such as "eacute"; "" when there is
/// none of that name. Names with capitals are not known: captions are in lower case.
std::string_view entity_text(std::string_view name);

/// The text of numeric reference `number` by the rules of HTML: windows-1252 for 0x80 to 0x9F,
/// nothing for what is no character, U+FFFD for 0, surrogates and what is beyond Unicode.
std::string numeric_reference_text(std::uint64_t number);

/// The character of windows-1252's bytes 0x80 to 0x9F; other values as they are.
char32_t from_windows_1252(char32_t value);

/// Every reference replaced once, from left to right; `text` is valid UTF-8.
std::string unescape_html(std::string_view text, References references);

/// The text of a piece of HTML: tags, comments, declarations and the content of script, style,
/// template, rt and rp gone, character references replaced, what only looks like a tag ("i <3 you",
/// "a < b", an unclosed "<b") kept. `text` is valid UTF-8 in lower case.
///
/// Equals BeautifulSoup(text, "html.parser").text of Beautifulsoup 4.15 on Python 3.11, save for
/// marked sections of an unknown kind ("<![x ...]"): those are an error there and a comment here.
std::string html_text(std::string_view text);

/// Undoes what copying and converting commonly do to a text, until nothing changes any more: HTML
/// references that end in a semicolon (not in lines with a '<'), C1 controls that were
/// windows-1252, ligatures of Latin letters, full-width and half-width forms, curly quotes, line
/// breaks of other systems, terminal escapes, control characters that are no white space, letters
/// apart from their marks (normal form C). `text` is valid UTF-8.
///
/// A part of ftfy.fix_text (6.3). Not here: the repair of text decoded in the wrong encoding
/// ("Ã©" stays "Ã©").
std::string repair_text(std::string_view text);

}  // namespace troupe::models
