#include "controller/gateway/init_image.h"

#include "models/image/limits.h"
#include "models/image/png_bytes.h"

namespace troupe::gateway {

std::string wrong_with_init_image(std::string_view png) {
  if (!models::begins_as_png(png)) return "init image is no PNG file";
  const std::uint64_t width = models::png_number(png, 16);
  const std::uint64_t height = models::png_number(png, 20);
  if (width == 0 || height == 0 || width > models::kMaxPngPixels / height) {
    return "init image has " + std::to_string(width) + " x " + std::to_string(height) +
           " pixels: from 1 to " + std::to_string(models::kMaxPngPixels) + " are taken";
  }
  return "";
}

}  // namespace troupe::gateway
