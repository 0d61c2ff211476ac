#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::models {

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

}  // namespace troupe::models
