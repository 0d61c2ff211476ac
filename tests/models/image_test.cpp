#include <ATen/ATen.h>
#include <zlib.h>

#include <string>

#include "models/image/png.h"
#include "models/image/png_text.h"
#include "tests/support/doctest.h"

using troupe::models::decode_picture;
using troupe::models::encode_png;
using troupe::models::PngText;
using troupe::models::read_png_text;
using troupe::models::to_uint8;

TEST_CASE("a picture and its texts come back from PNG") {
  const PngText text = {{"parameters", "a red circle\nSteps: 20, Seed: 1"},
                        {"prompt", "ein grüner Löwe, 緑のライオン 🦁"},
                        {"prompt", "twice the same keyword"},
                        {"empty", ""}};
  for (const auto& [height, width] :
       {std::pair{1, 1}, {1, 7}, {13, 1}, {33, 65}, {128, 256}, {257, 31}}) {
    CAPTURE(height);
    CAPTURE(width);
    const at::Tensor rgb = at::randint(0, 256, {height, width, 3}, at::kByte);
    const auto png = encode_png(rgb, text);
    CHECK(at::equal(decode_picture(png), rgb));
    CHECK(read_png_text(png) == text);
  }
  const at::Tensor strided = at::randint(0, 256, {3, 9, 8}, at::kByte).permute({1, 2, 0});
  CHECK(at::equal(decode_picture(encode_png(strided, {})), strided));
}

TEST_CASE("ASCII goes to tEXt, the rest to iTXt") {
  const at::Tensor rgb = at::zeros({2, 2, 3}, at::kByte);
  const std::string ascii = encode_png(rgb, {{"k", "plain"}});
  CHECK(ascii.find("tEXtk") != std::string::npos);
  CHECK(ascii.find("iTXt") == std::string::npos);
  CHECK(encode_png(rgb, {{"k", "é"}}).find("iTXtk") != std::string::npos);
}

TEST_CASE("the size of a PNG is read without its pixels") {
  const auto size =
      troupe::models::read_png_size(encode_png(at::zeros({5, 300, 3}, at::kByte), {}));
  CHECK(size.width == 300);
  CHECK(size.height == 5);
}

TEST_CASE(
    "texts that are small as they lie in a file and large when inflated are bounded together") {
  const std::string megabyte(1 << 20, 'a');
  std::string packed(2048, '\0');
  uLongf size = packed.size();
  REQUIRE(compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                   reinterpret_cast<const Bytef*>(megabyte.data()), megabyte.size()) == Z_OK);
  packed.resize(size);
  const auto big_endian = [](std::uint32_t value) {
    std::string out;
    for (int shift = 24; shift >= 0; shift -= 8)
      out += static_cast<char>(value >> shift & 0xff);
    return out;
  };
  const std::string body = std::string("zTXtk\0\0", 7) + packed;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
  const std::string chunk = big_endian(static_cast<std::uint32_t>(body.size() - 4)) + body +
                            big_endian(static_cast<std::uint32_t>(sum));
  const auto with = [&](int chunks) {
    std::string png = encode_png(at::zeros({2, 2, 3}, at::kByte), {});
    for (int i = 0; i < chunks; ++i)
      png.insert(troupe::models::kPngHeaderEnd, chunk);
    return png;
  };
  CHECK(read_png_text(with(15)).size() == 15);
  CHECK_THROWS_WITH(read_png_text(with(100)), "[read_png_text] texts of more than 16 MiB");
  CHECK(at::equal(decode_picture(with(100)), at::zeros({2, 2, 3}, at::kByte)));
}

TEST_CASE("what a PNG cannot hold is refused") {
  const at::Tensor rgb = at::zeros({2, 2, 3}, at::kByte);
  CHECK_THROWS_AS(encode_png(at::zeros({2, 2, 4}, at::kByte), {}), std::invalid_argument);
  CHECK_THROWS_AS(encode_png(at::zeros({2, 2, 3}), {}), std::invalid_argument);
  CHECK_THROWS_AS(encode_png(at::zeros({0, 2, 3}, at::kByte), {}), std::invalid_argument);
  for (const std::string& keyword : {std::string(), std::string(80, 'k'), std::string("é"),
                                     std::string(" k"), std::string("a  b")}) {
    CHECK_THROWS_AS(encode_png(rgb, {{keyword, "text"}}), std::invalid_argument);
  }
  for (const std::string& text :
       {std::string("\xff"), std::string("\xc3"), std::string("a\0b", 3),
        std::string("\xed\xa0\x80"), std::string("\xc0\xaf"), std::string("\xf4\x90\x80\x80")}) {
    CHECK_THROWS_AS(encode_png(rgb, {{"k", text}}), std::invalid_argument);
  }
}

TEST_CASE("damaged PNG is refused, at every length and every flipped byte without a crash") {
  const std::string png =
      encode_png(at::randint(0, 256, {5, 4, 3}, at::kByte), {{"k", "text"}, {"u", "ü"}});
  CHECK_THROWS_AS(decode_picture("GIF89a"), std::runtime_error);
  CHECK_THROWS_AS(read_png_text("GIF89a"), std::runtime_error);
  CHECK_THROWS_AS(troupe::models::read_png_size("GIF89a"), std::runtime_error);
  for (size_t n = 0; n < png.size(); ++n) {
    CHECK_THROWS_AS(decode_picture(png.substr(0, n)), std::runtime_error);
    CHECK_THROWS_AS(read_png_text(png.substr(0, n)), std::runtime_error);
  }
  int noticed = 0;
  for (size_t n = 0; n < png.size(); ++n) {
    std::string damaged = png;
    damaged[n] = static_cast<char>(damaged[n] ^ 0x11);
    try {
      read_png_text(damaged);
    } catch (const std::runtime_error&) {
      ++noticed;
    }
  }
  CHECK(noticed > 8 + 2 * 12);  // at least the signature and both text chunks
}

TEST_CASE("pixels are rounded as diffusers rounds") {
  // Beyond the range, the ends, and the exact ties k + 1/2, which go to the even neighbour.
  const at::Tensor decoded = at::tensor({-3.0f, -1.0f, 0.0f, 1.0f, 7.0f}).view({1, 1, 1, 5});
  const at::Tensor expected = at::tensor({0, 0, 128, 255, 255}, at::kByte).view({1, 1, 5, 1});
  CHECK(at::equal(to_uint8(decoded), expected));  // 127.5 goes to 128
  const at::Tensor picture = at::randn({2, 3, 5, 7});
  const at::Tensor pixels = to_uint8(picture);
  REQUIRE(pixels.sizes() == at::IntArrayRef{2, 5, 7, 3});
  const at::Tensor exact =
      ((picture.to(at::kDouble) / 2 + 0.5).clamp(0, 1) * 255).permute({0, 2, 3, 1});
  CHECK((pixels.to(at::kDouble) - exact).abs().max().item<double>() <= 0.5001);
  CHECK_THROWS_AS(to_uint8(at::zeros({3, 4, 4})), std::invalid_argument);
  CHECK_THROWS_AS(to_uint8(at::zeros({1, 3, 4, 4}, at::kByte)), std::invalid_argument);
}
