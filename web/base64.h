#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace troupe::web {

/// RFC 4648, with padding.
std::string base64(std::string_view bytes);
/// Returns two lower-case digits per byte.
std::string hex(std::string_view bytes);
/// Decodes base64, also of a data: URL, whose beginning is left out; spaces and line ends are
/// skipped. Returns nothing if the text is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace troupe::web
