#pragma once
#include <string>
#include <string_view>

namespace troupe::gateway {

/// Why a picture that was sent, `name` in words, is not taken, by its first 33 bytes: it is no PNG,
/// has no pixels or more than 2^28, which is what actors decode. Empty if nothing is wrong; its
/// pixels are not looked at.
std::string wrong_with_picture(const std::string& name, std::string_view png);

}  // namespace troupe::gateway
