#include "models/image/resize_and_crop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace troupe::models {
namespace {

std::int64_t scaled(std::int64_t side, double ratio, std::int64_t wanted) {
  return std::max(static_cast<std::int64_t>(static_cast<double>(side) * ratio), wanted);
}

}  // namespace

at::Tensor resize_and_crop(const at::Tensor& pictures, std::int64_t height, std::int64_t width) {
  if (pictures.dim() != 4 || !pictures.is_floating_point() || height <= 0 || width <= 0) {
    std::ostringstream text;
    text << "[resize_and_crop] " << pictures.scalar_type() << " " << pictures.sizes() << " to "
         << height << " x " << width << ": a floating [B, C, H, W] and a positive size are needed";
    throw std::invalid_argument(text.str());
  }
  const std::int64_t old_height = pictures.size(2);
  const std::int64_t old_width = pictures.size(3);
  if (old_height == height && old_width == width) return pictures;
  const double ratio = std::max(static_cast<double>(height) / static_cast<double>(old_height),
                                static_cast<double>(width) / static_cast<double>(old_width));
  const std::int64_t new_height = scaled(old_height, ratio, height);
  const std::int64_t new_width = scaled(old_width, ratio, width);
  const at::Tensor resized =
      at::upsample_bilinear2d(pictures, {new_height, new_width}, /*align_corners=*/false);
  return resized.narrow(2, (new_height - height) / 2, height)
      .narrow(3, (new_width - width) / 2, width);
}

}  // namespace troupe::models
