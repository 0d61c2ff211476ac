#pragma once

#include <string>
#include <string_view>

namespace troupe::models {

/// Unicode's normal form C (UAX #15, Unicode 14); bytes that are not UTF-8 become U+FFFD.
std::string nfc(std::string_view text);
/// Normal form D of the same.
std::string nfd(std::string_view text);

}  // namespace troupe::models
