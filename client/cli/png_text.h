#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cli {

struct PngText {
  std::string keyword;
  std::string text;
};

struct PngInfo {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::vector<PngText> texts;  // in the file's order
};

/// Size and text chunks (tEXt, iTXt; compressed ones are named with their size) of a PNG file's
/// bytes. Throws std::runtime_error when the bytes are no PNG, are cut short or fail a checksum.
/// Source: W3C PNG specification, chunks IHDR, tEXt, zTXt, iTXt.
PngInfo read_png_info(std::string_view bytes);

}  // namespace troupe::cli
