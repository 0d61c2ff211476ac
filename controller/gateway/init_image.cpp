#include "controller/gateway/init_image.h"

#include "models/image/limits.h"

namespace troupe::gateway {
namespace {

using namespace std::string_view_literals;

constexpr auto kBeginning = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"sv;
constexpr std::size_t kHeaderEnd = 33;

std::uint64_t number_at(std::string_view bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (const char byte : bytes.substr(at, 4))
    value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

}  // namespace

std::string wrong_with_init_image(std::string_view png) {
  if (!png.starts_with(kBeginning) || png.size() < kHeaderEnd) return "init image is no PNG file";
  const auto width = number_at(png, 16);
  const auto height = number_at(png, 20);
  if (width == 0 || height == 0 || width > models::kMaxPngPixels / height) {
    return "init image has " + std::to_string(width) + " x " + std::to_string(height) +
           " pixels: from 1 to " + std::to_string(models::kMaxPngPixels) + " are taken";
  }
  return "";
}

}  // namespace troupe::gateway
