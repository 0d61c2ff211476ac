#include "tests/process/support/pictures.h"

#include "models/image/frames.h"
#include "tests/support/text.h"

#include <png.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace troupe::testing {
namespace {

/// Frees what libpng's simplified interface holds, whichever way the reading ends.
struct PngImage {
  png_image image{};
  ~PngImage() { png_image_free(&image); }
};

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

}  // namespace

Bytes decode_png(const std::string& png) {
  PngImage reader;
  reader.image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&reader.image, png.data(), png.size())) {
    throw std::runtime_error(std::string("[tests] not a PNG: ") + reader.image.message);
  }
  reader.image.format = PNG_FORMAT_RGB;
  Bytes pixels;
  pixels.shape = {reader.image.height, reader.image.width, 3};
  pixels.data.resize(PNG_IMAGE_SIZE(reader.image));
  if (!png_image_finish_read(&reader.image, nullptr, pixels.data.data(), 0, nullptr)) {
    throw std::runtime_error(std::string("[tests] a broken PNG: ") + reader.image.message);
  }
  return pixels;
}

Bytes tall_picture(const std::string& clip) {
  Bytes tall;
  for (const auto& png : models::split_frames(clip)) {
    const auto frame = decode_png(png);
    if (tall.shape.empty()) {
      tall = frame;
      continue;
    }
    tall.shape[0] += frame.shape[0];
    tall.data.insert(tall.data.end(), frame.data.begin(), frame.data.end());
  }
  return tall;
}

Bytes read_png(const std::filesystem::path& file) {
  return decode_png(read_all(file));
}

Bytes picture_of(const Bytes& batch, std::int64_t index) {
  Bytes picture;
  picture.shape.assign(batch.shape.begin() + 1, batch.shape.end());
  const auto size = static_cast<std::int64_t>(batch.data.size()) / batch.shape.at(0);
  picture.data.assign(batch.data.begin() + index * size, batch.data.begin() + (index + 1) * size);
  return picture;
}

std::string png_text(const std::string& png, const std::string& keyword) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::size_t length = big_endian(png, at);
    const std::string kind = png.substr(at + 4, 4);
    const std::string content = png.substr(at + 8, length);
    if ((kind == "tEXt" || kind == "iTXt") && content.substr(0, content.find('\0')) == keyword) {
      // iTXt has two flags, a language and a translated keyword between keyword and text.
      std::size_t text = content.find('\0') + 1;
      if (kind == "iTXt") text = content.find('\0', content.find('\0', text + 2) + 1) + 1;
      return content.substr(text);
    }
    at += 12 + length;
  }
  return "";
}

}  // namespace troupe::testing
