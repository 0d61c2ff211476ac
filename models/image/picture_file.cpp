#include "models/image/picture_file.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "base/format.h"
#include "models/image/limits.h"
#include "models/image/png_text.h"

namespace troupe::models {
namespace {

constexpr int kUpright = 1;
constexpr std::size_t kMostMetadata = std::size_t{1} << 20;  // unpacked, as Pillow has it

std::uint32_t number_of(std::string_view bytes, std::size_t at, int size, bool big_endian) {
  std::uint32_t value = 0;
  for (int i = 0; i < size; ++i) {
    const auto byte = static_cast<std::uint8_t>(bytes[at + static_cast<std::size_t>(i)]);
    value |= static_cast<std::uint32_t>(byte) << 8 * (big_endian ? size - 1 - i : i);
  }
  return value;
}

/// Throws where a file has too many parts for the pixels that it can have: each is looked at.
void check_parts(std::size_t parts) {
  constexpr std::size_t kMostParts = std::size_t{1} << 20;
  if (parts > kMostParts)
    throw std::runtime_error(fmt::format("has more than {} chunks", kMostParts));
}

/// The tag Orientation of the first folder of an EXIF block. Source: TIFF 6.0, EXIF 2.32.
std::optional<int> orientation_of_exif(std::string_view exif) {
  constexpr std::string_view kName("Exif\0\0", 6);
  for (int i = 0; i < 2 && exif.starts_with(kName); ++i)
    exif.remove_prefix(kName.size());
  const bool big = exif.starts_with("MM");
  if (exif.size() < 8 || (!big && !exif.starts_with("II"))) return {};
  const std::size_t folder = number_of(exif, 4, 4, big);
  constexpr std::size_t kEntry = 12;
  constexpr std::uint32_t kOrientation = 0x0112;
  enum Type : std::uint32_t { byte = 1, word = 3, long_word = 4 };
  if (folder > exif.size() - 2) return {};
  const std::size_t entries =
      std::min<std::size_t>(number_of(exif, folder, 2, big), (exif.size() - folder - 2) / kEntry);
  std::optional<int> found;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = folder + 2 + i * kEntry;
    if (number_of(exif, at, 2, big) != kOrientation || number_of(exif, at + 4, 4, big) != 1)
      continue;
    const auto type = number_of(exif, at + 2, 2, big);
    if (type == byte) found = static_cast<int>(number_of(exif, at + 8, 1, big));
    if (type == word) found = static_cast<int>(number_of(exif, at + 8, 2, big));
    if (type == long_word) found = static_cast<int>(number_of(exif, at + 8, 4, big) & 0xffff);
  }
  return found;
}

std::optional<int> orientation_of_xmp(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (auto at = xmp.find(kName); at != xmp.npos; at = xmp.find(kName, at + 1)) {
    auto rest = xmp.substr(at + kName.size());
    if (rest.starts_with(">"))
      rest.remove_prefix(1);
    else if (rest.starts_with("=\""))
      rest.remove_prefix(2);
    else
      continue;
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return {};
}

/// Metadata that says how a picture is turned, as far as it has been read.
struct Turning {
  std::optional<std::string> exif;
  std::string xmp;

  int orientation() const {
    auto found = exif ? orientation_of_exif(*exif) : std::nullopt;
    if (!found) found = orientation_of_xmp(xmp);
    return found && *found >= 1 && *found <= 8 ? *found : kUpright;
  }
};

/// The bytes behind the third line of digits in base 16, as ImageMagick writes a block into a text.
std::string bytes_of_raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line)
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  std::string bytes;
  int high = -1;
  for (const char letter : text) {
    const auto digit = std::string_view("0123456789abcdef").find(static_cast<char>(letter | 0x20));
    if (digit == std::string_view::npos) continue;
    if (high >= 0) bytes += static_cast<char>(high << 4 | static_cast<int>(digit));
    high = high >= 0 ? -1 : static_cast<int>(digit);
  }
  return bytes;
}

/// The texts of a PNG's chunks; few of the compressed ones, so that the work is bounded.
class PngTexts {
 public:
  explicit PngTexts(const UnpackText& unpack) : unpack_(unpack) {}

  /// Returns the chunk's text; nothing if the chunk has another keyword, or is not to be read.
  std::optional<std::string> text_of(const PngChunk& chunk, std::string_view keyword) {
    if (chunk.data.size() <= keyword.size() || !chunk.data.starts_with(keyword) ||
        chunk.data[keyword.size()] != '\0')
      return {};
    auto rest = chunk.data.substr(keyword.size() + 1);
    bool compressed = chunk.type == "zTXt";
    if (compressed) {
      if (rest.empty()) return {};
      rest.remove_prefix(1);
    } else if (chunk.type == "iTXt") {
      if (rest.size() < 2) return {};
      compressed = rest[0] != 0;
      rest.remove_prefix(2);
      for (int field = 0; field < 2; ++field) {  // language, keyword in it
        const auto end = rest.find('\0');
        if (end == rest.npos) return {};
        rest.remove_prefix(end + 1);
      }
    } else if (chunk.type != "tEXt") {
      return {};
    }
    if (!compressed) return std::string(rest.substr(0, kMostMetadata));
    if (!unpack_ || unpacked_ == kMostUnpacked) return {};
    ++unpacked_;
    return unpack_(rest, kMostMetadata);
  }

 private:
  static constexpr int kMostUnpacked = 4;
  const UnpackText& unpack_;
  int unpacked_ = 0;
};

void read_png(std::string_view png, const UnpackText& unpack, PictureHeader& header) {
  if (!begins_as_png(png)) throw std::runtime_error("is a damaged PNG: its header is cut off");
  const auto size = png_size(png);
  header.coded_width = size.width;
  header.coded_height = size.height;
  Turning turning;
  std::optional<std::string> raw_profile;
  PngTexts texts(unpack);
  std::size_t chunks = 0;
  each_png_chunk(png, [&](const PngChunk& chunk) {
    check_parts(++chunks);
    if (chunk.type == "eXIf") turning.exif = chunk.data;
    if (chunk.type == "iCCP") header.has_color_profile = true;
    if (chunk.type == "acTL" && chunk.data.size() >= 4) header.frames = png_number(chunk.data, 0);
    if (auto text = texts.text_of(chunk, "XML:com.adobe.xmp")) turning.xmp = std::move(*text);
    if (auto text = texts.text_of(chunk, "Raw profile type exif")) raw_profile = std::move(text);
  });
  if (!turning.exif && raw_profile) turning.exif = bytes_of_raw_profile(*raw_profile);
  header.orientation = turning.orientation();
}

/// Source: ITU-T T.81, annex B.
void read_jpeg(std::string_view jpeg, PictureHeader& header) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  constexpr std::string_view kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
  constexpr std::string_view kProfile("ICC_PROFILE\0", 12);
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(jpeg[at]); };
  Turning turning;
  for (std::size_t at = 2; at + 4 <= jpeg.size();) {
    if (at > kMaxBesidePixels)
      throw std::runtime_error(
          fmt::format("has more than {} bytes before its pixels", kMaxBesidePixels));
    const int marker = byte(at) == 0xff ? byte(at + 1) : 0xff;
    if (marker == 0xff || marker == 0) {  // fill bytes, and what is between markers
      ++at;
      continue;
    }
    if (marker == 0xda || marker == 0xd9) break;  // pixels begin
    const bool is_alone = marker == 1 || (marker & 0xf8) == 0xd0 || marker == 0xd8;
    at += 2;
    if (is_alone) continue;
    const std::size_t length = number_of(jpeg, at, 2, true);
    if (length < 2 || length > jpeg.size() - at) break;
    const auto data = jpeg.substr(at + 2, length - 2);
    const bool is_frame =
        marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (is_frame && data.size() >= 5) {
      header.coded_height = number_of(data, 1, 2, true);
      header.coded_width = number_of(data, 3, 2, true);
    }
    if (marker == 0xe1 && data.starts_with(kExif))
      turning.exif = turning.exif.value_or("").append(data.substr(turning.exif ? 6 : 0));
    if (marker == 0xe1 && data.starts_with(kXmp)) turning.xmp = data.substr(kXmp.size());
    if (marker == 0xe2 && data.starts_with(kProfile)) header.has_color_profile = true;
    at += length;
  }
  if (header.coded_width == 0)
    throw std::runtime_error("is a damaged JPEG: it says no size before its pixels");
  header.orientation = turning.orientation();
}

/// Source: the WebP container specification; RFC 6386, 9.1; the WebP lossless specification, 3.
void read_webp(std::string_view webp, PictureHeader& header) {
  Turning turning;
  const auto set_size = [&](std::uint32_t width, std::uint32_t height) {
    if (header.coded_width != 0) return;
    header.coded_width = width;
    header.coded_height = height;
  };
  std::size_t chunks = 0, frames = 0;
  for (std::size_t at = 12; at + 8 <= webp.size();) {
    check_parts(++chunks);
    const auto type = webp.substr(at, 4);
    const std::size_t length = number_of(webp, at + 4, 4, false);
    const auto data = webp.substr(at + 8, length);
    if (type == "VP8X" && data.size() >= 10) {
      constexpr int kAnimated = 2;
      header.is_animated = (data[0] & kAnimated) != 0;
      set_size(number_of(data, 4, 3, false) + 1, number_of(data, 7, 3, false) + 1);
    } else if (type == "VP8L" && data.size() >= 5) {
      const auto bits = number_of(data, 1, 4, false);
      set_size((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1);
    } else if (type == "VP8 " && data.size() >= 10) {
      set_size(number_of(data, 6, 2, false) & 0x3fff, number_of(data, 8, 2, false) & 0x3fff);
    } else if (type == "ICCP") {
      header.has_color_profile = true;
    } else if (type == "EXIF") {
      turning.exif = data;
    } else if (type == "XMP ") {
      turning.xmp = data;
    } else if (type == "ANMF") {
      ++frames;
    }
    at += 8 + length + length % 2;
  }
  if (header.coded_width == 0) throw std::runtime_error("is a damaged WebP: it says no size");
  header.frames = std::max<std::size_t>(frames, 1);
  header.orientation = turning.orientation();
}

struct Refused {
  std::size_t at;
  std::string_view bytes;
  const char* name;
};

constexpr Refused kRefused[] = {{0, "GIF8", "a GIF"},
                                {0, "BM", "a BMP"},
                                {0, "II*", "a TIFF"},
                                {0, "MM", "a TIFF"},
                                {4, "ftypavif", "an AVIF"},
                                {4, "ftypheic", "a HEIC"},
                                {4, "ftypmif1", "a HEIC"},
                                {0, "\xff\x0a", "a JPEG XL"},
                                {0, std::string_view("\0\0\0\x0cJXL ", 8), "a JPEG XL"},
                                {4, "ftyp", "a video"},
                                {0, "\x1a\x45\xdf\xa3", "a video"},
                                {0, "<", "an SVG or HTML"}};

}  // namespace

PictureHeader read_picture_header(std::string_view file, const UnpackText& unpack) {
  PictureHeader header;
  if (file.starts_with(kPngSignature)) {
    read_png(file, unpack, header);
  } else if (file.starts_with("\xff\xd8\xff")) {
    header.codec = PictureCodec::jpeg;
    read_jpeg(file, header);
  } else if (file.starts_with("RIFF") && file.substr(0, 12).ends_with("WEBP")) {
    header.codec = PictureCodec::webp;
    read_webp(file, header);
  } else {
    for (const auto& [at, bytes, name] : kRefused)
      if (file.size() > at && file.substr(at).starts_with(bytes))
        throw std::runtime_error(fmt::format("is {}: PNG, JPEG and WebP are taken", name));
    throw std::runtime_error("is no PNG, JPEG or WebP file");
  }
  const std::uint64_t width = header.coded_width;
  const std::uint64_t height = header.coded_height;
  if (width == 0 || height == 0 || width > kMaxPicturePixels / height)
    throw std::runtime_error(fmt::format("has {} x {} pixels: from 1 to {} are taken",
                                         header.width(), header.height(), kMaxPicturePixels));
  const std::uint64_t most = most_picture_bytes(height, width);
  if (file.size() > most)
    throw std::runtime_error(fmt::format("has {} bytes for {} x {} pixels: at most {} are taken",
                                         file.size(), header.width(), header.height(), most));
  return header;
}

std::vector<std::string> left_out(const PictureHeader& header) {
  std::vector<std::string> texts;
  if (header.frames > 1) texts.emplace_back("is animated: its first frame is taken");
  if (header.has_color_profile)
    texts.emplace_back("has a colour profile, which is ignored: its values are taken as sRGB");
  return texts;
}

}  // namespace troupe::models
