#include "models/image/clip_writer.h"

#include <png.h>

#include <stdexcept>

namespace troupe::models {

ClipFrame::ClipFrame(int width, int height) : width_(width), height_(height) {
  const std::size_t luma =
      static_cast<std::size_t>(even_width()) * static_cast<std::size_t>(even_height());
  planes_[0].resize(luma);
  planes_[1].resize(luma / 4);
  planes_[2].resize(luma / 4);
}

void ClipFrame::read(const std::string& png) {
  png_image picture{};
  picture.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&picture, png.data(), png.size()))
    throw std::runtime_error(std::string("a frame cannot be read: ") + picture.message);
  picture.format = PNG_FORMAT_RGB;
  rgb_.resize(PNG_IMAGE_SIZE(picture));
  if (!png_image_finish_read(&picture, nullptr, rgb_.data(), 0, nullptr)) {
    const std::string why = picture.message;
    png_image_free(&picture);
    throw std::runtime_error("a frame cannot be read: " + why);
  }
  fill();
}

/// Source: ITU-R BT.709.
void ClipFrame::fill() {
  const auto set = [&](int plane, int x, int y, double value) {
    const int at = y * stride(plane) + x;
    planes_[static_cast<std::size_t>(plane)][static_cast<std::size_t>(at)] =
        static_cast<unsigned char>(value + 0.5);
  };
  for (int y = 0; y < height_; y += 2) {
    for (int x = 0; x < width_; x += 2) {
      double sum[3] = {};
      for (int i = 0; i < 4; ++i) {
        const int from_x = std::min(x + i % 2, width_ - 1),
                  from_y = std::min(y + i / 2, height_ - 1);
        const unsigned char* p =
            &rgb_[(static_cast<std::size_t>(from_y) * static_cast<std::size_t>(width_) +
                   static_cast<std::size_t>(from_x)) *
                  3];
        set(0, x + i % 2, y + i / 2, 16 + 0.1826 * p[0] + 0.6142 * p[1] + 0.0620 * p[2]);
        for (int c = 0; c < 3; ++c)
          sum[c] += p[c] / 4.;
      }
      set(1, x / 2, y / 2, 128 - 0.1006 * sum[0] - 0.3386 * sum[1] + 0.4392 * sum[2]);
      set(2, x / 2, y / 2, 128 + 0.4392 * sum[0] - 0.3989 * sum[1] - 0.0403 * sum[2]);
    }
  }
}

}  // namespace troupe::models
