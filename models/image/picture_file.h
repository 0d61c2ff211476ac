#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::models {

/// The formats of pictures that come in.
enum class PictureCodec { png, jpeg, webp };

/// Properties that a picture's file states before its pixels are unpacked.
struct PictureHeader {
  PictureCodec codec = PictureCodec::png;
  std::uint32_t coded_width = 0;
  std::uint32_t coded_height = 0;
  int orientation = 1;             // EXIF's, 1 to 8: how the coded rows are to be turned
  bool is_animated = false;        // a WebP whose frames are drawn on a canvas
  std::size_t frames = 1;          // PNG and WebP
  bool has_color_profile = false;  // an ICC profile

  std::uint32_t width() const { return is_on_its_side() ? coded_height : coded_width; }
  std::uint32_t height() const { return is_on_its_side() ? coded_width : coded_height; }
  bool is_on_its_side() const { return orientation >= 5; }
};

/// Returns the text of a compressed text in a PNG, of at most `most` bytes; "" if the text is
/// longer or damaged.
using UnpackText = std::function<std::string(std::string_view packed, std::size_t most)>;

/// Reads the header, and the parts beside the pixels that say how the picture is turned: EXIF, else
/// XMP, as Pillow's ImageOps.exif_transpose takes them. Without `unpack` those that a PNG has as
/// compressed texts are passed over. Throws std::runtime_error,
/// "is a GIF: PNG, JPEG and WebP are taken", for another file, for a header that cannot be read,
/// for no pixels or more than kMaxPicturePixels, and for far more bytes or chunks than its pixels
/// can need.
PictureHeader read_picture_header(std::string_view file, const UnpackText& unpack = {});

/// Returns what the file has and the pixels alone do not keep, for a warning: "is animated: its
/// first frame is taken".
std::vector<std::string> left_out(const PictureHeader& header);

}  // namespace troupe::models
