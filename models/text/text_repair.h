#pragma once

#include <string>
#include <string_view>

namespace troupe::models {

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
