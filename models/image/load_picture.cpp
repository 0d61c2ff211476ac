#include "models/image/load_picture.h"

#include <png.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>

#include "base/format.h"
#include "models/image/picture_file.h"
#include "models/image/png_text.h"

#include <jpeglib.h>  // needs <cstdio> before it

#include <jerror.h>

namespace troupe::models {
namespace {

using Tick = std::function<void()>;
constexpr std::uint32_t kRowsPerTick = 64;

/// Pixels as they are stored, with alpha where somebody wants it and it is there.
struct Raster {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  int channels = 3;
  /// Pillow gives it the mode RGBA (a palette whose alpha is more than one clear entry counts, gray
  /// with alpha of 8 bits does not), and A1111 looks at the alpha of no other.
  bool is_rgba = false;
  std::vector<std::uint8_t> bytes;

  std::uint8_t* row(std::uint32_t y) {
    return bytes.data() + std::size_t{y} * width * static_cast<std::size_t>(channels);
  }
};

/// The parts of a PNG that its pixels need: critical chunks, and tRNS. Others never reach libpng,
/// which would unpack them.
std::vector<std::string_view> needed_parts(std::string_view png) {
  std::vector<std::string_view> parts = {png.substr(0, kPngSignature.size())};
  const char* end = nullptr;
  const bool whole = each_png_chunk(png, [&](const PngChunk& chunk) {
    const bool is_critical = chunk.type[0] >= 'A' && chunk.type[0] <= 'Z';
    end = chunk.data.data() + chunk.data.size() + 4;
    if (is_critical || chunk.type == "tRNS")
      parts.emplace_back(chunk.type.data() - 4, chunk.data.size() + kPngChunkFrame);
  });
  if (!whole) throw std::runtime_error("is damaged: the PNG is cut off before its end chunk");
  parts.emplace_back(end, kPngChunkFrame);
  return parts;
}

/// libpng jumps back from errors, so none of the functions that call it holds what has a
/// destructor.
class PngReader {
 public:
  explicit PngReader(std::string_view png) : parts_(needed_parts(png)) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::runtime_error("cannot be read: libpng does not start");
    }
    png_set_read_fn(png_, this, on_read);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  Raster read(bool wants_alpha, const Tick& tick) {
    begin();
    Raster raster{
        png_get_image_width(png_, info_), png_get_image_height(png_, info_), 3, false, {}};
    const auto color = png_get_color_type(png_, info_);
    const bool is_palette = color == PNG_COLOR_TYPE_PALETTE;
    is_gray16_ = color == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png_, info_) == 16;
    raster.is_rgba = color == PNG_COLOR_TYPE_RGB_ALPHA ||
                     (color == PNG_COLOR_TYPE_GRAY_ALPHA && png_get_bit_depth(png_, info_) == 16) ||
                     (is_palette && !has_simple_alpha());
    const bool has_alpha = (color & PNG_COLOR_MASK_ALPHA) != 0 || has_transparency();
    if (wants_alpha && has_alpha) raster.channels = 4;
    choose_layout(raster.channels == 4);
    raster.bytes.resize(std::size_t{raster.width} * raster.height *
                        static_cast<std::size_t>(raster.channels));
    for (int pass = 0; pass < passes_; ++pass) {
      for (std::uint32_t y = 0; y < raster.height; ++y) {
        if (tick && y % kRowsPerTick == 0) tick();
        if (pass == passes_ - 1 && y == raster.height - 1)
          may_read_ = kMostBehind + 2 * png_get_rowbytes(png_, info_);
        read_row(raster.row(y));
      }
    }
    end();
    if (is_gray16_) make_gray(raster);
    return raster;
  }

 private:
  static void on_error(png_structp png, png_const_charp why) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->why_, sizeof self->why_, "%s", why);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep to, std::size_t size) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > self->may_read_) png_error(png, "it goes on behind its pixels");
    self->may_read_ -= size;
    while (size > 0 && self->part_ < self->parts_.size()) {
      auto& part = self->parts_[self->part_];
      const std::size_t here = std::min(size, part.size());
      to = std::copy_n(part.data(), here, to);
      part.remove_prefix(here);
      size -= here;
      if (part.empty()) ++self->part_;
    }
    if (size > 0) png_error(png, "it is cut off");
  }
  [[noreturn]] void fail() const {
    throw std::runtime_error(std::string("is damaged: the PNG cannot be read: ") + why_);
  }

  void begin() {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(png_, info_);
  }
  bool has_transparency() const { return png_get_valid(png_, info_, PNG_INFO_tRNS) != 0; }
  /// Says whether there is no alpha, or one entry is all clear and the others are all there.
  bool has_simple_alpha() const {
    png_bytep alpha = nullptr;
    int count = 0;
    if (png_get_tRNS(png_, info_, &alpha, &count, nullptr) == 0) return true;
    return std::count(alpha, alpha + count, 255) == count - 1 &&
           std::count(alpha, alpha + count, 0) == 1;
  }
  void choose_layout(bool with_alpha) {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    if (is_gray16_) {
      png_color_16p clear = nullptr;
      if (png_get_tRNS(png_, info_, nullptr, nullptr, &clear) != 0) clear_gray_ = clear->gray;
    } else {
      png_set_strip_16(png_);
      png_set_expand(png_);
      png_set_gray_to_rgb(png_);
      if (!with_alpha) png_set_strip_alpha(png_);
    }
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  }
  void read_row(std::uint8_t* row) {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    png_read_row(png_, row, nullptr);
  }
  void end() {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    png_read_end(png_, nullptr);
  }
  /// Makes colours of the values of two bytes at each row's beginning, the last first, in place.
  void make_gray(Raster& raster) const {
    const auto stride = static_cast<std::size_t>(raster.channels);
    for (std::uint32_t y = 0; y < raster.height; ++y) {
      std::uint8_t* row = raster.row(y);
      for (std::size_t x = raster.width; x-- > 0;) {
        const unsigned value = unsigned{row[2 * x]} << 8 | row[2 * x + 1];
        std::fill_n(row + stride * x, 3, static_cast<std::uint8_t>((value + 128) / 257));
        if (stride == 4) row[stride * x + 3] = value == clear_gray_ ? 0 : 255;
      }
    }
  }

  /// libpng unpacks all that lies behind the last row, and then says whether it was needed.
  static constexpr std::size_t kMostBehind = std::size_t{64} << 10;

  std::vector<std::string_view> parts_;
  std::size_t part_ = 0;
  std::size_t may_read_ = PNG_SIZE_MAX;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  bool is_gray16_ = false;
  std::optional<unsigned> clear_gray_;
  char why_[200] = "";
};

/// libjpeg jumps back from errors, as libpng does.
class JpegReader {
 public:
  explicit JpegReader(std::string_view jpeg, const Tick& tick) : jpeg_(jpeg), tick_(tick) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    errors_.output_message = [](j_common_ptr) {};
    progress_.progress_monitor = on_progress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  Raster read() {
    begin();
    Raster raster{info_.output_width, info_.output_height, 3, false, {}};
    raster.bytes.resize(std::size_t{raster.width} * raster.height * 3);
    std::vector<std::uint8_t> inks(is_cmyk_ ? std::size_t{raster.width} * 4 : 0);
    for (std::uint32_t y = 0; y < raster.height; ++y) {
      if (tick_ && y % kRowsPerTick == 0) tick_();
      read_row(is_cmyk_ ? inks.data() : raster.row(y));
      for (std::size_t x = 0; is_cmyk_ && x < raster.width; ++x)
        to_rgb(&inks[4 * x], raster.row(y) + 3 * x);
    }
    end();
    return raster;
  }

 private:
  static constexpr int kMostScans = 64;
  /// Bounds the pixels of all scans together: a picture of the largest size may have sixteen.
  static constexpr std::uint64_t kMostScanned = std::uint64_t{1} << 30;

  static JpegReader& of(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }
  [[noreturn]] static void on_error(j_common_ptr info) {
    auto& self = of(info);
    (*info->err->format_message)(info, self.why_);
    std::longjmp(self.back_, 1);
  }
  /// Damage is an error here; a few things that writers of JPEGs do are none.
  static void on_message(j_common_ptr info, int level) {
    const int code = info->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM &&
        code != JWRN_JFIF_MAJOR)
      on_error(info);
  }
  static void on_progress(j_common_ptr info) {
    auto& self = of(info);
    const auto scans = static_cast<std::uint64_t>(self.info_.input_scan_number);
    const std::uint64_t pixels = std::uint64_t{self.info_.image_width} * self.info_.image_height;
    if (scans > kMostScans || scans * pixels > kMostScanned) {
      std::snprintf(self.why_, sizeof self.why_, "it has too many scans");
      std::longjmp(self.back_, 1);
    }
    if (!self.may_go_on()) std::longjmp(self.back_, 1);
  }
  bool may_go_on() noexcept {
    try {
      if (tick_) tick_();
      return true;
    } catch (...) {
      stopped_ = std::current_exception();
      return false;
    }
  }
  [[noreturn]] void fail() const {
    if (stopped_) std::rethrow_exception(stopped_);
    throw std::runtime_error(std::string("is damaged: the JPEG cannot be read: ") + why_);
  }

  void begin() {
    if (setjmp(back_) != 0) fail();
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(jpeg_.data()), jpeg_.size());
    jpeg_read_header(&info_, TRUE);
    is_cmyk_ = info_.num_components == 4;
    info_.out_color_space = is_cmyk_ ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info_);
  }
  void read_row(JSAMPLE* row) {
    if (setjmp(back_) != 0) fail();
    jpeg_read_scanlines(&info_, &row, 1);
  }
  void end() {
    if (setjmp(back_) != 0) fail();
    jpeg_finish_decompress(&info_);
  }
  /// Adobe stores inks inverted, and Pillow takes all of them so: a value is what ink leaves.
  static void to_rgb(const std::uint8_t* left, std::uint8_t* rgb) {
    const int white = left[3];
    for (int i = 0; i < 3; ++i) {
      const int product = (255 - left[i]) * white + 128;
      rgb[i] =
          static_cast<std::uint8_t>(std::clamp(white - (((product >> 8) + product) >> 8), 0, 255));
    }
  }

  std::string_view jpeg_;
  const Tick& tick_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf back_;
  std::exception_ptr stopped_;
  bool is_cmyk_ = false;
  char why_[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void fail_webp() {
  throw std::runtime_error("is damaged: the WebP cannot be read");
}

/// The first frame, on the whole canvas.
Raster read_first_frame(std::string_view webp) {
  const WebPData data{reinterpret_cast<const std::uint8_t*>(webp.data()), webp.size()};
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(
      WebPAnimDecoderNew(&data, nullptr), WebPAnimDecoderDelete);
  WebPAnimInfo info;
  std::uint8_t* rgba = nullptr;
  int time = 0;
  if (!decoder || !WebPAnimDecoderGetInfo(decoder.get(), &info) ||
      !WebPAnimDecoderGetNext(decoder.get(), &rgba, &time))
    fail_webp();
  const std::size_t bytes = std::size_t{info.canvas_width} * info.canvas_height * 4;
  const bool has_alpha =
      (WebPDemuxGetI(WebPAnimDecoderGetDemuxer(decoder.get()), WEBP_FF_FORMAT_FLAGS) &
       ALPHA_FLAG) != 0;
  return {info.canvas_width, info.canvas_height, 4, has_alpha, {rgba, rgba + bytes}};
}

Raster read_webp_pixels(std::string_view webp, const PictureHeader& header, bool wants_alpha) {
  if (header.is_animated) return read_first_frame(webp);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(webp.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes, webp.size(), &features) != VP8_STATUS_OK ||
      static_cast<std::uint32_t>(features.width) != header.coded_width ||
      static_cast<std::uint32_t>(features.height) != header.coded_height)
    fail_webp();
  Raster raster{header.coded_width, header.coded_height, 3, features.has_alpha != 0, {}};
  if (wants_alpha && raster.is_rgba) raster.channels = 4;
  raster.bytes.resize(std::size_t{raster.width} * raster.height *
                      static_cast<std::size_t>(raster.channels));
  const auto decode = raster.channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (!decode(bytes, webp.size(), raster.bytes.data(), raster.bytes.size(),
              features.width * raster.channels))
    fail_webp();
  return raster;
}

/// A pixel's colour from its colour and alpha.
void use_alpha(AlphaUse use, const std::uint8_t* rgba, std::uint8_t* rgb) {
  const int alpha = rgba[3];
  switch (use) {
    case AlphaUse::dropped:
      std::copy_n(rgba, 3, rgb);
      return;
    case AlphaUse::over_white:
      for (int i = 0; i < 3; ++i) {
        const int sum = rgba[i] * alpha + 255 * (255 - alpha) + 128;
        rgb[i] = static_cast<std::uint8_t>(((sum >> 8) + sum) >> 8);
      }
      return;
    case AlphaUse::mask:
      std::fill_n(rgb, 3, static_cast<std::uint8_t>(alpha > 128 ? 255 : 0));
      return;
    case AlphaUse::clear_parts:
      std::fill_n(rgb, 3, static_cast<std::uint8_t>(255 - alpha));
      return;
  }
}

/// Makes three bytes a pixel of four, in place; true where alpha counted.
bool settle_alpha(Raster& raster, AlphaUse use) {
  if (raster.channels == 3) return false;
  const std::size_t count = std::size_t{raster.width} * raster.height;
  bool counts = use == AlphaUse::clear_parts;
  if (use != AlphaUse::clear_parts && raster.is_rgba)
    for (std::size_t i = 0; i < count && !counts; ++i)
      counts = raster.bytes[4 * i + 3] != 255;
  if (!counts) use = AlphaUse::dropped;
  for (std::size_t i = 0; i < count; ++i) {
    std::array<std::uint8_t, 4> rgba;
    std::copy_n(&raster.bytes[4 * i], 4, rgba.begin());
    use_alpha(use, rgba.data(), &raster.bytes[3 * i]);
  }
  raster.bytes.resize(3 * count);
  return counts;
}

/// Turns it as EXIF's orientation says: 2 to 4 mirror or turn by 180°, 5 to 8 lie on their side.
Pixels upright(Raster raster, int orientation) {
  if (orientation == 1) return {raster.width, raster.height, std::move(raster.bytes), false};
  const bool on_its_side = orientation >= 5;
  Pixels turned{on_its_side ? raster.height : raster.width,
                on_its_side ? raster.width : raster.height,
                std::vector<std::uint8_t>(raster.bytes.size()), false};
  // Sides of the scene at which the first coded row and column lie, by the EXIF standard.
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_below =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  auto* to = turned.rgb.data();
  for (std::uint32_t y = 0; y < turned.height; ++y) {
    for (std::uint32_t x = 0; x < turned.width; ++x, to += 3) {
      std::uint32_t column = on_its_side ? y : x;
      std::uint32_t row = on_its_side ? x : y;
      if (from_right) column = raster.width - 1 - column;
      if (from_below) row = raster.height - 1 - row;
      std::copy_n(raster.bytes.data() + (std::size_t{row} * raster.width + column) * 3, 3, to);
    }
  }
  return turned;
}

}  // namespace

Pixels load_picture(std::string_view file, AlphaUse alpha, const Tick& tick) {
  const auto header = read_picture_header(file, unpack_png_text);
  const bool wants_alpha = alpha != AlphaUse::dropped;
  if (tick) tick();
  Raster raster = header.codec == PictureCodec::png ? PngReader(file).read(wants_alpha, tick)
                  : header.codec == PictureCodec::jpeg
                      ? JpegReader(file, tick).read()
                      : read_webp_pixels(file, header, wants_alpha);
  const bool is_of_alpha = settle_alpha(raster, alpha);
  auto pixels = upright(std::move(raster), header.orientation);
  pixels.is_of_alpha = is_of_alpha && alpha != AlphaUse::dropped;
  return pixels;
}

std::string write_png(const Pixels& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = pixels.width;
  image.height = pixels.height;
  image.format = PNG_FORMAT_RGB;
  image.flags = PNG_IMAGE_FLAG_FAST;
  std::string png(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = png.size();
  if (!png_image_write_to_memory(&image, png.data(), &size, 0, pixels.rgb.data(), 0, nullptr))
    throw std::runtime_error(std::string("no PNG can be made of it: ") + image.message);
  png.resize(size);
  return png;
}

}  // namespace troupe::models
