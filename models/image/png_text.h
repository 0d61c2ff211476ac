#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::models {

// How a PNG file is laid out. Source: the PNG specification, third edition, section 5.

inline constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
inline constexpr std::size_t kPngChunkFrame = 12;  // around its data: length, type, checksum
inline constexpr std::size_t kPngHeaderEnd = 33;   // signature, then the IHDR chunk

/// The number in the four bytes from `at`, the highest first.
inline std::uint32_t png_number(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (const char byte : bytes.substr(at, 4))
    value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

/// Returns whether `png` begins with a PNG's signature and a complete header chunk.
inline bool begins_as_png(std::string_view png) {
  return png.size() >= kPngHeaderEnd && png.starts_with(kPngSignature) &&
         png.substr(kPngSignature.size(), 8) == std::string_view("\0\0\0\x0dIHDR", 8);
}

struct PngSize {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
};

/// Returns the size that a PNG's header states; 0 × 0 for a file that does not begin as a PNG.
inline PngSize png_size(std::string_view png) {
  if (!begins_as_png(png)) return {};
  return {png_number(png, 16), png_number(png, 20)};
}

struct PngChunk {
  std::string_view type;
  std::string_view data;
  std::string_view summed;  // what its checksum is of: type and data
  std::uint32_t checksum = 0;
};

/// Calls `visit` with each chunk of a file that begins with the signature, except the end chunk;
/// returns false if the file is cut off before that.
template <class Visit>
bool each_png_chunk(std::string_view png, Visit&& visit) {
  for (std::size_t at = kPngSignature.size(); true;) {
    if (png.size() - at < kPngChunkFrame) return false;
    const std::uint32_t length = png_number(png, at);
    if (length > png.size() - at - kPngChunkFrame) return false;
    const std::string_view type = png.substr(at + 4, 4);
    if (type == "IEND") return true;
    visit(PngChunk{type, png.substr(at + 8, length), png.substr(at + 4, std::size_t{length} + 4),
                   png_number(png, at + 8 + length)});
    at += kPngChunkFrame + length;
  }
}

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

/// Returns `png` with these texts in place of its own. Throws as add_png_text does.
std::string set_png_text(std::string_view png, const PngText& text);

/// Returns `png` with one chunk for each of `text` put before its pixels: tEXt where the text is
/// ASCII, else iTXt, uncompressed. Throws std::invalid_argument for a keyword that is not 1 to 79
/// printable ASCII characters without outer or double spaces, and for a text that is not UTF-8 or
/// holds a zero byte.
std::string add_png_text(std::string_view png, const PngText& text);

}  // namespace troupe::models
