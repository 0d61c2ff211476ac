#include "web/pictures.h"

#include <png.h>
#include <webp/encode.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/format.h"

#include <jpeglib.h>  // needs <cstdio> before it

namespace troupe::web {
namespace {

struct Pixels {
  int width = 0;
  int height = 0;
  std::vector<unsigned char> rgb;
};

/// Reads a picture that we have made: 8-bit RGB.
Pixels read_png(std::string_view png) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&image, png.data(), png.size()))
    throw std::runtime_error(std::string("the PNG cannot be read: ") + image.message);
  image.format = PNG_FORMAT_RGB;
  Pixels pixels{static_cast<int>(image.width), static_cast<int>(image.height), {}};
  pixels.rgb.resize(PNG_IMAGE_SIZE(image));
  if (!png_image_finish_read(&image, nullptr, pixels.rgb.data(), 0, nullptr)) {
    const std::string why = image.message;
    png_image_free(&image);
    throw std::runtime_error("the PNG cannot be read: " + why);
  }
  return pixels;
}

struct JpegErrors : jpeg_error_mgr {
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  auto* errors = static_cast<JpegErrors*>(info->err);
  (*errors->format_message)(info, errors->text);
  std::longjmp(errors->back, 1);
}

/// Writes a JPEG. False with the reason in `errors`. Objects in here must need no destructor:
/// libjpeg jumps back.
bool write_jpeg(const Pixels& pixels, int quality, JpegErrors& errors, unsigned char** bytes,
                unsigned long* size) {
  jpeg_compress_struct info{};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = on_jpeg_error;
  if (setjmp(errors.back) != 0) {
    jpeg_destroy_compress(&info);
    return false;
  }
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, bytes, size);
  info.image_width = static_cast<JDIMENSION>(pixels.width);
  info.image_height = static_cast<JDIMENSION>(pixels.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPLE*>(pixels.rgb.data()) +
                std::size_t{info.next_scanline} * info.image_width * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  return true;
}

std::string jpeg_file(const Pixels& pixels, int quality) {
  struct Buffer {
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    ~Buffer() { std::free(bytes); }
  } out;
  JpegErrors errors{};
  if (!write_jpeg(pixels, quality, errors, &out.bytes, &out.size))
    throw std::runtime_error(std::string("no JPEG can be made of it: ") + errors.text);
  return {reinterpret_cast<const char*>(out.bytes), out.size};
}

std::string webp_file(const Pixels& pixels, int quality) {
  if (pixels.width > WEBP_MAX_DIMENSION || pixels.height > WEBP_MAX_DIMENSION)
    throw std::runtime_error(fmt::format("a WebP has at most {} pixels a side: ask for png or jpeg",
                                         WEBP_MAX_DIMENSION));
  std::uint8_t* bytes = nullptr;
  const int stride = pixels.width * 3;
  const std::size_t size =
      quality >= 100
          ? WebPEncodeLosslessRGB(pixels.rgb.data(), pixels.width, pixels.height, stride, &bytes)
          : WebPEncodeRGB(pixels.rgb.data(), pixels.width, pixels.height, stride,
                          static_cast<float>(quality), &bytes);
  const std::unique_ptr<std::uint8_t, void (*)(void*)> end(bytes, WebPFree);
  if (size == 0) throw std::runtime_error("no WebP can be made of it");
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::string taken_picture(std::string file, models::AlphaUse alpha) {
  const auto pixels = models::load_picture(file, alpha);
  return pixels.is_of_alpha ? models::write_png(pixels) : file;
}

std::string npy_file(const Latents& latents) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const auto size : latents.shape)
    header += fmt::format("{}, ", size);
  header += "), }";
  constexpr std::size_t kBefore = 10;  // magic, version, the header's length
  header.resize((header.size() + kBefore + 1 + 63) / 64 * 64 - kBefore - 1, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\0", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  return file.append(reinterpret_cast<const char*>(latents.data.data()),
                     latents.data.size() * sizeof(float));
}

std::string picture_file(std::string_view png, const PictureKind& kind) {
  if (kind.format == PictureFormat::png) return std::string(png);
  if (const auto clip = clip_format(kind.format))
    return models::clip_file(png, *clip, kind.quality);
  const Pixels pixels = read_png(png);
  return kind.format == PictureFormat::jpeg ? jpeg_file(pixels, kind.quality)
                                            : webp_file(pixels, kind.quality);
}

}  // namespace troupe::web
