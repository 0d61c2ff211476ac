#include "web/pictures.h"

#include <png.h>
#include <webp/decode.h>
#include <webp/encode.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "models/image/png_bytes.h"

#include <jpeglib.h>  // needs <cstdio> before it

namespace troupe::web {
namespace {

constexpr std::uint64_t kMostPixels = 1 << 25;  // of a JPEG or WebP that is read: 100 MB

struct Pixels {
  int width = 0;
  int height = 0;
  std::vector<unsigned char> rgb;
};

/// 8-bit RGB; alpha is dropped. Source: libpng's simplified API.
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

/// What libjpeg would write to standard error: damage that it could go on after.
void keep_jpeg_message(j_common_ptr info) {
  auto* errors = static_cast<JpegErrors*>(info->err);
  (*errors->format_message)(info, errors->text);
}

/// False with the reason in `errors`. What it has must need no destructor: libjpeg jumps back.
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

/// The size, and into `rgb` the pixels unless it is null. What it has must need no destructor.
bool read_jpeg(const std::string& file, JpegErrors& errors, int& width, int& height,
               unsigned char* rgb) {
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = on_jpeg_error;
  errors.output_message = keep_jpeg_message;
  if (setjmp(errors.back) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  width = static_cast<int>(info.image_width);
  height = static_cast<int>(info.image_height);
  if (rgb) {
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPLE* row = rgb + std::size_t{info.output_scanline} * info.output_width * 3;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
  }
  const bool whole = errors.num_warnings == 0;
  jpeg_destroy_decompress(&info);
  return whole;
}

void check_pixels(int width, int height) {
  if (width < 1 || height < 1 ||
      static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height) > kMostPixels)
    throw std::runtime_error(fmt::format("{} x {} pixels are none, or too many", width, height));
}

Pixels pixels_of_jpeg(const std::string& file) {
  JpegErrors errors{};
  Pixels pixels;
  if (!read_jpeg(file, errors, pixels.width, pixels.height, nullptr))
    throw std::runtime_error(std::string("the JPEG cannot be read: ") + errors.text);
  check_pixels(pixels.width, pixels.height);
  pixels.rgb.resize(std::size_t(pixels.width) * std::size_t(pixels.height) * 3);
  if (!read_jpeg(file, errors, pixels.width, pixels.height, pixels.rgb.data()))
    throw std::runtime_error(std::string("the JPEG cannot be read: ") + errors.text);
  return pixels;
}

Pixels pixels_of_webp(const std::string& file) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(file.data());
  Pixels pixels;
  if (!WebPGetInfo(bytes, file.size(), &pixels.width, &pixels.height))
    throw std::runtime_error("the WebP cannot be read");
  check_pixels(pixels.width, pixels.height);
  pixels.rgb.resize(std::size_t(pixels.width) * std::size_t(pixels.height) * 3);
  if (!WebPDecodeRGBInto(bytes, file.size(), pixels.rgb.data(), pixels.rgb.size(),
                         pixels.width * 3))
    throw std::runtime_error("the WebP cannot be read");
  return pixels;
}

std::string write_png(const Pixels& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(pixels.width);
  image.height = static_cast<png_uint_32>(pixels.height);
  image.format = PNG_FORMAT_RGB;
  std::string png(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = png.size();
  if (!png_image_write_to_memory(&image, png.data(), &size, 0, pixels.rgb.data(), 0, nullptr))
    throw std::runtime_error(std::string("no PNG can be made of it: ") + image.message);
  png.resize(size);
  return png;
}

}  // namespace

std::string to_png(const std::string& file) {
  if (file.starts_with(models::kPngSignature)) return file;
  if (file.starts_with("\xff\xd8\xff")) return write_png(pixels_of_jpeg(file));
  if (file.starts_with("RIFF") && file.substr(0, 12).ends_with("WEBP"))
    return write_png(pixels_of_webp(file));
  throw std::runtime_error("is no PNG, JPEG or WebP file");
}

std::string mask_of_alpha(const std::string& png) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> end(&image, png_image_free);
  const auto check = [&](int fine) {
    if (!fine) throw std::runtime_error(std::string("the PNG cannot be read: ") + image.message);
  };
  check(png_image_begin_read_from_memory(&image, png.data(), png.size()));
  if ((image.format & PNG_FORMAT_FLAG_ALPHA) == 0) return png;
  image.format = PNG_FORMAT_GA;
  Pixels mask{static_cast<int>(image.width), static_cast<int>(image.height), {}};
  check_pixels(mask.width, mask.height);
  std::vector<unsigned char> pixels(PNG_IMAGE_SIZE(image));
  check(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr));
  for (std::size_t i = 1; i < pixels.size(); i += 2)
    mask.rgb.insert(mask.rgb.end(), 3, static_cast<unsigned char>(255 - pixels[i]));
  return write_png(mask);
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
