#include "controller/gateway/init_image.h"

#include "base/format.h"
#include "models/image/limits.h"
#include "models/image/png_bytes.h"

namespace troupe::gateway {

std::string wrong_with_picture(const std::string& name, std::string_view png) {
  if (!models::begins_as_png(png)) return name + " is no PNG file";
  const std::uint64_t width = models::png_number(png, 16);
  const std::uint64_t height = models::png_number(png, 20);
  if (width == 0 || height == 0 || width > models::kMaxPngPixels / height) {
    return fmt::format("{} has {} x {} pixels: from 1 to {} are taken", name, width, height,
                       models::kMaxPngPixels);
  }
  return "";
}

}  // namespace troupe::gateway
