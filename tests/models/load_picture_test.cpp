#include "models/image/load_picture.h"

#include <zlib.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "base/endian.h"
#include "models/image/limits.h"
#include "models/image/picture_file.h"
#include "models/image/png_text.h"
#include "tests/models/fixtures.h"
#include "tests/support/text.h"

// Last.
#include "tests/support/doctest.h"

namespace troupe::models {
namespace {

using testing::kFixtures;
using troupe::testing::message_of;
using troupe::testing::read_all;

std::string file_of(const std::string& name) {
  return read_all(kFixtures / "pictures" / name);
}

std::string hex_of(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  for (const auto byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

/// A chunk of a PNG.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), uInt(body.size()));
  return big_endian(data.size(), 4) + body + big_endian(sum, 4);
}

std::string packed(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  compress(reinterpret_cast<Bytef*>(out.data()), &size,
           reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  out.resize(size);
  return out;
}

std::string with_chunks(const std::string& png, const std::string& chunks) {
  constexpr std::size_t kHeader = 33;
  return png.substr(0, kHeader) + chunks + png.substr(kHeader);
}

}  // namespace

TEST_CASE("a PNG's texts are replaced, and nothing else") {
  const std::string plain = write_png({2, 1, {1, 2, 3, 4, 5, 6}});
  const std::string old = add_png_text(plain, {{"a", "1"}, {"b", "\u00fc"}});
  const PngText wanted = {{"b", "3"}, {"c", "\u00f6"}};
  const std::string set = set_png_text(old, wanted);
  CHECK(read_png_text(set) == wanted);
  CHECK(set == add_png_text(plain, wanted));
  CHECK_THROWS_AS(set_png_text("GIF89a", wanted), std::invalid_argument);
}

TEST_CASE("pictures have the values that diffusers' load_image and A1111's rules give") {
  const auto book = nlohmann::json::parse(read_all(kFixtures / "expected/pictures.json"));
  CHECK(book["cases"].size() > 60);
  for (const auto& [name, expected] : book["cases"].items()) {
    CAPTURE(name);
    const std::string file = file_of(name);
    const auto header = read_picture_header(file, unpack_png_text);
    CHECK(header.width() == expected["width"]);
    CHECK(header.height() == expected["height"]);
    CHECK((header.frames > 1) == expected.contains("animated"));
    CHECK(header.has_color_profile == expected.contains("profile"));
    CHECK(left_out(header).size() ==
          std::size_t{expected.contains("animated")} + std::size_t{expected.contains("profile")});
    for (const auto& [key, use] : {std::pair<std::string, AlphaUse>{"rgb", AlphaUse::dropped},
                                   {"mask", AlphaUse::mask},
                                   {"over_white", AlphaUse::over_white}}) {
      CAPTURE(key);
      const auto picture = load_picture(file, use);
      CHECK(picture.width == expected["width"]);
      CHECK(picture.height == expected["height"]);
      CHECK(hex_of(picture.rgb) == expected.value(key, expected["rgb"].get<std::string>()));
    }
    const auto plain = load_picture(file);
    CHECK(load_picture(write_png(plain)).rgb == plain.rgb);
  }
}

TEST_CASE("what is transparent in a mask of OpenAI's API is white, also by a transparent colour") {
  const auto clear = load_picture(file_of("rgba8.png"), AlphaUse::clear_parts);
  const auto colours = load_picture(file_of("rgba8_opaque.png"), AlphaUse::clear_parts);
  CHECK(std::set<std::uint8_t>(clear.rgb.begin(), clear.rgb.end()).size() > 10);
  CHECK(std::set<std::uint8_t>(colours.rgb.begin(), colours.rgb.end()) ==
        std::set<std::uint8_t>{0});
  const auto one = load_picture(file_of("gray8_clear.png"), AlphaUse::clear_parts);
  CHECK(std::set<std::uint8_t>(one.rgb.begin(), one.rgb.end()) == std::set<std::uint8_t>{0, 255});
  CHECK(load_picture(file_of("rgb16.png"), AlphaUse::clear_parts).rgb ==
        load_picture(file_of("rgb16.png")).rgb);
}

TEST_CASE("other formats, sizes and damage are refused by name") {
  const auto refusal = [](const std::string& file) {
    return message_of([&] { load_picture(file); });
  };
  CHECK(refusal("GIF89a") == "is a GIF: PNG, JPEG and WebP are taken");
  CHECK(refusal(std::string("\0\0\0\x1c", 4) + "ftypavif") ==
        "is an AVIF: PNG, JPEG and WebP are taken");
  CHECK(refusal("") == "is no PNG, JPEG or WebP file");
  std::string png = file_of("rgb8.png");
  CHECK(refusal(png.substr(0, 20)) == "is a damaged PNG: its header is cut off");
  CHECK(refusal(png.substr(0, png.size() - 12)) ==
        "is damaged: the PNG is cut off before its end chunk");
  png.replace(16, 8, big_endian(1 << 13, 4) + big_endian((1 << 13) + 1, 4));
  CHECK(refusal(png) == "has 8192 x 8193 pixels: from 1 to 67108864 are taken");
  static_assert(kMaxPicturePixels == 67108864);
  CHECK(refusal(with_chunks(file_of("rgb8.png"), chunk("tEXt", std::string(17 << 20, 'x'))))
            .ends_with(" bytes for 7 x 5 pixels: at most 16777776 are taken"));
  png.replace(16, 8, std::string(8, '\0'));
  CHECK(refusal(png).starts_with("has 0 x 0 pixels"));
  for (const char* name : {"420.jpg", "progressive.jpg", "lossy.webp", "lossless.webp",
                           "animated.webp", "rgb8_interlaced.png"}) {
    CAPTURE(name);
    const std::string file = file_of(name);
    for (std::size_t size = 0; size < file.size() - 2; size += 7)
      CHECK_THROWS_AS(load_picture(file.substr(0, size)), std::runtime_error);
  }
}

TEST_CASE("parts beside the pixels of a PNG are not unpacked, however many there are") {
  const std::string bomb = packed(std::string(8 << 20, 'x'));
  std::string chunks;
  for (int i = 0; i < 200; ++i)
    chunks += chunk("zTXt", "Comment" + std::string(2, '\0') + bomb) +
              chunk("zTXt", "Raw profile type exif" + std::string(2, '\0') + bomb) +
              chunk("iTXt", "XML:com.adobe.xmp" + std::string("\0\1\0\0\0", 5) + bomb);
  chunks += chunk("iCCP", "x" + std::string(2, '\0') + bomb);
  const std::string png = file_of("rgb8.png");
  // 5 GB if they were.
  CHECK(load_picture(with_chunks(png, chunks)).rgb == load_picture(png).rgb);
}

TEST_CASE("a PNG whose data goes on behind its last row is refused before that is unpacked") {
  const std::string png = file_of("rgb8.png");
  const auto begin = png.find("IDAT") - 4;
  // 128 MiB, of which the picture needs a few hundred bytes.
  const std::string bomb = png.substr(0, begin) +
                           chunk("IDAT", packed(std::string(std::size_t{128} << 20, '\0'))) +
                           chunk("IEND", "");
  CHECK(message_of([&] { load_picture(bomb); }) ==
        "is damaged: the PNG cannot be read: it goes on behind its pixels");
}

TEST_CASE("a file of very many parts is refused before they are kept") {
  const std::string png = file_of("rgb8.png");
  std::string many;
  for (int i = 0; i <= 1 << 20; ++i)
    many += std::string(4, '\0') + "IDAT" + std::string(4, '\0');
  CHECK(message_of([&] { read_picture_header(with_chunks(png, many)); }) ==
        "has more than 1048576 chunks");
  CHECK(message_of([&] {
          read_picture_header("\xff\xd8" + std::string((std::size_t{16} << 20) + 8, '\xff'));
        }) == "has more than 16777216 bytes before its pixels");
}

TEST_CASE("a JPEG of very many scans is refused before they are read") {
  // The first scan has all coefficients 0; one for each of the others follows, coarse, then fine.
  // A code of one bit, 0, says that a block has no more.
  const std::string file = file_of("progressive.jpg");
  auto end = file.find("\xff\xda");
  do
    end = file.find('\xff', end + 1);
  while (file[end + 1] == '\0');
  const std::string codes = std::string("\xff\xc4\0\x14\x10\1", 6) + std::string(16, '\0');
  const auto scan = [](int coefficient, int exactness) {
    return std::string("\xff\xda\0\x08\1\1\0", 7) + std::string(2, static_cast<char>(coefficient)) +
           static_cast<char>(exactness) + "\x7f";
  };
  const auto with_scans = [&](int count) {
    std::string jpeg = file.substr(0, end) + codes;
    for (int i = 0; i < count; ++i)
      jpeg += scan(i % 63 + 1, i < 63 ? 1 : 0x10);
    return jpeg + "\xff\xd9";
  };
  CHECK(load_picture(with_scans(63)).width == 7);
  CHECK(message_of([&] { load_picture(with_scans(64)); }) ==
        "is damaged: the JPEG cannot be read: it has too many scans");
}

TEST_CASE("whoever waits for a picture is asked every few rows whether it is still wanted") {
  Pixels large{.width = 8, .height = 4096, .rgb = std::vector<std::uint8_t>(8 * 4096 * 3)};
  const std::string png = write_png(large);
  int ticks = 0;
  load_picture(png, AlphaUse::dropped, [&] { ++ticks; });
  CHECK(ticks > 60);
  CHECK(message_of([&] {
          load_picture(png, AlphaUse::dropped, [&] {
            if (--ticks < 30) throw std::runtime_error("cancelled");
          });
        }) == "cancelled");
  for (const char* name : {"progressive.jpg", "444.jpg"})
    CHECK(message_of([&] {
            load_picture(file_of(name), AlphaUse::dropped, [calls = 0]() mutable {
              if (++calls > 1) throw std::runtime_error("cancelled");
            });
          }) == "cancelled");
}

}  // namespace troupe::models
