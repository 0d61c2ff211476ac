#include "models/image/png.h"

#include <ATen/ATen.h>
#include <png.h>

#include <sstream>
#include <stdexcept>

#include "models/image/limits.h"
#include "models/image/png_bytes.h"

namespace troupe::models {
namespace {

// libpng's plain interface: it reports errors by return value and never jumps across our frames.
class Image {
 public:
  Image() { image_.version = PNG_IMAGE_VERSION; }
  ~Image() { png_image_free(&image_); }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  png_image* get() { return &image_; }
  png_image* operator->() { return &image_; }

  void require(int ok, const char* what) const {
    if (!ok || PNG_IMAGE_FAILED(image_)) {
      throw std::runtime_error(std::string("[") + what + "] " + image_.message);
    }
  }

 private:
  png_image image_{};
};

}  // namespace

std::string encode_png(const at::Tensor& rgb, const PngText& text) {
  if (rgb.dim() != 3 || rgb.size(2) != 3 || rgb.numel() == 0 || rgb.scalar_type() != at::kByte ||
      !rgb.is_cpu()) {
    std::ostringstream what;
    what << "[encode_png] " << rgb.scalar_type() << " " << rgb.sizes() << " on " << rgb.device()
         << " is not uint8 [H, W, 3] on the CPU";
    throw std::invalid_argument(what.str());
  }
  const at::Tensor rows = rgb.contiguous();
  Image image;
  image->width = static_cast<png_uint_32>(rows.size(1));
  image->height = static_cast<png_uint_32>(rows.size(0));
  image->format = PNG_FORMAT_RGB;
  const void* pixels = rows.const_data_ptr<std::uint8_t>();

  // Room for pixels that do not compress, so that one pass is enough.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(*image.get());
  std::string png(size, '\0');
  image.require(png_image_write_to_memory(image.get(), png.data(), &size, 0, pixels, 0, nullptr),
                "encode_png");
  png.resize(size);
  return add_png_text(png, text);
}

at::Tensor decode_png(std::string_view png) {
  Image image;
  image.require(png_image_begin_read_from_memory(image.get(), png.data(), png.size()),
                "decode_png");
  const std::uint64_t pixels = std::uint64_t{image->width} * image->height;
  if (pixels > kMaxPngPixels) {
    throw std::runtime_error("[decode_png] " + std::to_string(image->width) + " x " +
                             std::to_string(image->height) + " pixels are more than are read");
  }
  image->format = PNG_FORMAT_RGBA;
  const auto count = static_cast<std::int64_t>(pixels);
  const at::Tensor rgba = at::empty({count * 4}, at::kByte);
  auto* bytes = rgba.mutable_data_ptr<std::uint8_t>();
  image.require(png_image_finish_read(image.get(), nullptr, bytes, 0, nullptr), "decode_png");
  if (!each_png_chunk(png, [](const PngChunk&) {}))
    throw std::runtime_error("[decode_png] cut off before its end chunk");
  // Moved together in place: a second copy would nearly double what a picture takes.
  for (std::int64_t i = 1; i < count; ++i) {
    for (int channel = 0; channel < 3; ++channel)
      bytes[3 * i + channel] = bytes[4 * i + channel];
  }
  return rgba.narrow(0, 0, count * 3).view({image->height, image->width, 3});
}

}  // namespace troupe::models
