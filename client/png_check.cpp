#include "client/png_check.h"

#include <array>
#include <cstdint>

namespace troupe::client {
namespace {

constexpr std::size_t kSignature = 8;
constexpr std::size_t kFrame = 12;  // of a chunk around its data: length, name, checksum
constexpr std::size_t kHeaderData = 13;

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (const char byte : bytes.substr(at, 4))
    value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

constexpr auto kChecksums = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit)
      value = value >> 1 ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
    table[byte] = value;
  }
  return table;
}();

std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t value = ~0U;
  for (const char byte : bytes)
    value = value >> 8 ^ kChecksums[(value ^ static_cast<std::uint8_t>(byte)) & 0xff];
  return ~value;
}

bool is_name(std::string_view name) {
  for (const char letter : name) {
    const char lower = static_cast<char>(letter | 0x20);
    if (lower < 'a' || lower > 'z') return false;
  }
  return true;
}

/// By the case of the name's first letter, a picture cannot be read without the chunk.
bool is_critical(std::string_view name) {
  return name[0] >= 'A' && name[0] <= 'Z';
}

}  // namespace

std::string wrong_with_png(std::string_view png) {
  bool pixels = false;
  for (std::size_t at = kSignature; true;) {
    const std::string place = " at byte " + std::to_string(at);
    if (png.size() < at + kFrame) return "is cut off" + place + ", before its end";
    const std::uint32_t length = number_at(png, at);
    const auto name = png.substr(at + 4, 4);
    if (!is_name(name)) return "has no chunk" + place + ", where one should begin";
    if (length > png.size() - at - kFrame) {
      return "is cut off: its " + std::string(name) + " chunk" + place + " has " +
             std::to_string(length) + " bytes, " + std::to_string(png.size() - at - 8) +
             " are left";
    }
    if ((at == kSignature) != (name == "IHDR") || (name == "IHDR" && length != kHeaderData))
      return "has no proper header chunk (IHDR)";
    if (is_critical(name) &&
        checksum(png.substr(at + 4, length + 4)) != number_at(png, at + 8 + length))
      return "is damaged: its " + std::string(name) + " chunk" + place + " fails its checksum";
    pixels = pixels || name == "IDAT";
    if (name == "IEND") return pixels ? "" : "has no pixels (IDAT)";
    at += kFrame + length;
  }
}

}  // namespace troupe::client
