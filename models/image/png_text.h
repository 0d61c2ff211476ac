#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/image/png_bytes.h"

namespace troupe::models {

/// Keyword and text, both UTF-8.
using PngText = std::vector<std::pair<std::string, std::string>>;

/// Most bytes that all texts of a file may have together, inflated.
inline constexpr std::size_t kMostTextBytes = std::size_t{16} << 20;

/// The tEXt, zTXt and iTXt chunks of a PNG in the order of the file; pixels are not looked at. All
/// of them together may have kMostTextBytes, inflated. Throws std::runtime_error if `png` is no
/// PNG, is cut off before its end chunk, has more text, or has a text chunk that is malformed or
/// fails its checksum.
PngText read_png_text(std::string_view png);

/// Returns a compressed text of a PNG; "" if the text is damaged or longer than `most` bytes.
std::string unpack_png_text(std::string_view packed, std::size_t most);

/// Returns the size from the header chunk. Throws std::runtime_error if `png` does not begin as a
/// PNG does.
PngSize read_png_size(std::string_view png);

/// `png` with these texts in place of its own. Throws as add_png_text does.
std::string set_png_text(std::string_view png, const PngText& text);

/// `png` with one chunk for each of `text` put before its pixels: tEXt where the text is ASCII,
/// else iTXt, uncompressed. Throws std::invalid_argument for a keyword that is not 1 to 79
/// printable ASCII characters without outer or double spaces, and for a text that is not UTF-8 or
/// holds a zero byte.
std::string add_png_text(std::string_view png, const PngText& text);

}  // namespace troupe::models
