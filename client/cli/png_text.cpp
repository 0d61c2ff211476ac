#include "client/cli/png_text.h"

#include <stdexcept>

namespace troupe::cli {
namespace {

std::uint32_t big_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) ? 0xedb88320u : 0u);
  }
  return ~crc;
}

/// The part before the next NUL, which is taken off `rest` with it.
std::string_view take_field(std::string_view& rest) {
  const std::size_t end = rest.find('\0');
  if (end == std::string_view::npos) throw std::runtime_error("text chunk without a keyword");
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return field;
}

std::string latin1_to_utf8(std::string_view latin1) {
  std::string utf8;
  for (const unsigned char c : latin1) {
    if (c < 0x80) {
      utf8.push_back(static_cast<char>(c));
    } else {
      utf8.push_back(static_cast<char>(0xc0 | c >> 6));
      utf8.push_back(static_cast<char>(0x80 | (c & 0x3f)));
    }
  }
  return utf8;
}

std::string compressed_note(std::size_t bytes) {
  return "(compressed, " + std::to_string(bytes) + " bytes)";
}

PngText parse_text(std::string_view type, std::string_view data) {
  PngText result;
  result.keyword = latin1_to_utf8(take_field(data));
  if (type == "tEXt") {
    result.text = latin1_to_utf8(data);
  } else if (type == "zTXt") {
    result.text = compressed_note(data.size());
  } else {
    if (data.size() < 2) throw std::runtime_error("iTXt chunk is too short");
    const bool compressed = data[0] != 0;
    data.remove_prefix(2);
    take_field(data);  // language
    take_field(data);  // translated keyword
    result.text = compressed ? compressed_note(data.size()) : std::string(data);
  }
  return result;
}

}  // namespace

PngInfo read_png_info(std::string_view bytes) {
  constexpr std::string_view kSignature("\x89PNG\r\n\x1a\n", 8);
  if (bytes.substr(0, kSignature.size()) != kSignature) throw std::runtime_error("is no PNG file");
  bytes.remove_prefix(kSignature.size());
  PngInfo info;
  for (bool first = true;; first = false) {
    if (bytes.size() < 12) throw std::runtime_error("PNG is cut short");
    const std::uint32_t length = big_endian(bytes);
    if (length > bytes.size() - 12) throw std::runtime_error("PNG is cut short");
    const std::string_view type = bytes.substr(4, 4);
    const std::string_view data = bytes.substr(8, length);
    if (checksum(bytes.substr(4, length + 4)) != big_endian(bytes.substr(8 + length))) {
      throw std::runtime_error("PNG is damaged: checksum of chunk " + std::string(type) +
                               " is wrong");
    }
    if (first && (type != "IHDR" || length != 13)) throw std::runtime_error("PNG has no header");
    if (type == "IHDR") {
      info.width = big_endian(data);
      info.height = big_endian(data.substr(4));
    } else if (type == "tEXt" || type == "zTXt" || type == "iTXt") {
      info.texts.push_back(parse_text(type, data));
    } else if (type == "IEND") {
      return info;
    }
    bytes.remove_prefix(12 + length);
  }
}

}  // namespace troupe::cli
