#pragma once

#include <string_view>

namespace troupe {

/// Returns whether `text` is well-formed UTF-8: no overlong forms, no surrogates, nothing beyond
/// U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace troupe
