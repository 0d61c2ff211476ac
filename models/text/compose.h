#pragma once

#include <string>
#include <string_view>

namespace troupe::models {

/// Letters and the marks that follow them as one code point each where Unicode has one, Hangul
/// included. That is NFC but for what takes looking up classes of marks: marks out of order or
/// behind another that does not compose stay, and so do single code points that NFC replaces.
std::string compose(std::string_view text);

}  // namespace troupe::models
