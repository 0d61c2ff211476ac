#pragma once
#include <string>
#include <string_view>

namespace troupe::client {

/// Returns what is wrong with a file that begins as a PNG does: it is cut off, its chunks do not
/// follow each other from header over pixels to the end chunk, or one that a picture needs fails
/// its checksum. Empty if nothing is wrong; the pixels themselves are not unpacked. Bytes after the
/// end chunk are not looked at.
std::string wrong_with_png(std::string_view png);

}  // namespace troupe::client
