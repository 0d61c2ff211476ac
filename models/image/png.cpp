#include "models/image/png.h"

#include <ATen/ATen.h>
#include <png.h>

#include <memory>
#include <sstream>
#include <stdexcept>

#include "models/image/load_picture.h"

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

at::Tensor to_uint8(const at::Tensor& decoded) {
  if (decoded.dim() != 4 || !decoded.is_floating_point()) {
    std::ostringstream text;
    text << "[to_uint8] " << decoded.scalar_type() << " " << decoded.sizes()
         << " is not a floating [B, C, H, W]";
    throw std::invalid_argument(text.str());
  }
  // Scaled in the tensor's own dtype, rounded in float32: the order in which diffusers does it.
  const at::Tensor unit = (decoded * 0.5 + 0.5).clamp(0, 1);
  const at::Tensor rows = unit.to(at::kCPU, at::kFloat).permute({0, 2, 3, 1});
  return (rows * 255).round().to(at::kByte).contiguous();
}

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

at::Tensor decode_picture(std::string_view file, const std::function<void()>& tick) {
  const auto pixels = std::make_shared<Pixels>(load_picture(file, AlphaUse::dropped, tick));
  return at::from_blob(
      pixels->rgb.data(), {pixels->height, pixels->width, 3}, [pixels](void*) {}, at::kByte);
}

}  // namespace troupe::models
