#include "client/cli/show_picture.h"

#include <png.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/support/doctest.h"

namespace troupe::cli {
namespace {

using Pixels = std::vector<std::uint8_t>;  // [height, width, 3]

std::string png_of(const Pixels& rgb, unsigned width, unsigned height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string png(size, '\0');
  REQUIRE(png_image_write_to_memory(&image, png.data(), &size, 0, rgb.data(), 0, nullptr) != 0);
  png.resize(size);
  return png;
}

/// Screen of a terminal that has painted sixels. Every pixel is painted once.
struct Screen {
  std::size_t width = 0, height = 0;
  Pixels rgb;

  explicit Screen(const std::string& text) {
    REQUIRE(text.starts_with("\x1bPq\"1;1;"));
    REQUIRE(text.ends_with("-\x1b\\\n"));
    const char* at = text.c_str() + 8;
    const auto number = [&at] {
      char* end = nullptr;
      const auto value = std::strtoul(at, &end, 10);
      REQUIRE(end != at);
      at = end;
      return value;
    };
    const auto next = [&at, &number] {  // after a semicolon
      REQUIRE(*at++ == ';');
      return number();
    };
    width = number();
    height = next();
    rgb.assign(width * height * 3, 0);
    std::vector<int> painted(width * height);
    std::vector<Pixels> palette(256);
    std::size_t colour = 0, x = 0, top = 0;
    while (*at != '\x1b') {
      std::size_t times = 1;
      switch (*at++) {
        case '#':
          colour = number();
          REQUIRE(colour < palette.size());
          if (*at != ';') continue;
          REQUIRE(next() == 2);
          for (int i = 0; i < 3; ++i)
            palette[colour].push_back(static_cast<std::uint8_t>(std::lround(next() * 2.55)));
          continue;
        case '$':
          x = 0;
          continue;
        case '-':
          x = 0;
          top += 6;
          continue;
        case '!':
          times = number();
          ++at;
          break;
      }
      REQUIRE(at[-1] >= '?');
      REQUIRE(at[-1] <= '~');
      for (; times > 0; --times, ++x) {
        REQUIRE(x < width);
        for (std::size_t bit = 0; bit < 6; ++bit) {
          if (((at[-1] - '?') >> bit & 1) == 0) continue;
          REQUIRE(top + bit < height);
          const auto pixel = (top + bit) * width + x;
          ++painted[pixel];
          std::copy(palette[colour].begin(), palette[colour].end(), rgb.begin() + pixel * 3);
        }
      }
    }
    CHECK(painted == std::vector<int>(width * height, 1));
  }

  double mean(std::size_t x, std::size_t y, std::size_t channel, std::size_t side) const {
    double sum = 0;
    for (std::size_t row = y; row < y + side; ++row)
      for (std::size_t column = x; column < x + side; ++column)
        sum += rgb[(row * width + column) * 3 + channel];
    return sum / static_cast<double>(side * side);
  }
};

}  // namespace

TEST_CASE("sixels: each pixel once, and the picture's colours where one looks from afar") {
  constexpr unsigned kWidth = 64, kHeight = 44;  // which is not a number of whole bands
  Pixels rgb;
  for (unsigned y = 0; y < kHeight; ++y)
    for (unsigned x = 0; x < kWidth; ++x)
      for (const unsigned value : {x * 4, y * 5, 255 - x * 2})
        rgb.push_back(static_cast<std::uint8_t>(value));
  const auto png = png_of(rgb, kWidth, kHeight);
  const Screen screen(terminal_picture(png, PictureProtocol::sixel, 80, 24));
  REQUIRE(screen.width == kWidth);
  REQUIRE(screen.height == kHeight);
  for (unsigned y = 0; y < kHeight; y += 4) {
    for (unsigned x = 0; x < kWidth; x += 4) {
      CAPTURE(x);
      CAPTURE(y);
      CHECK(std::abs(screen.mean(x, y, 0, 4) - (x * 4 + 6)) < 8);
      CHECK(std::abs(screen.mean(x, y, 1, 4) - (y * 5 + 7.5)) < 8);
      CHECK(std::abs(screen.mean(x, y, 2, 4) - (255 - x * 2 - 3)) < 8);
    }
  }
  // Colours of the palette stay as they are; runs are short.
  const auto white =
      terminal_picture(png_of(Pixels(600 * 3, 255), 20, 30), PictureProtocol::sixel, 80, 24);
  CHECK(Screen(white).rgb == Pixels(600 * 3, 255));
  CHECK(white.find("#215!20~$-") != std::string::npos);
  // A small terminal: 10 letters of 8 pixels, 2 rows of 16.
  const Screen small(
      terminal_picture(png_of(Pixels(200 * 100 * 3, 51), 200, 100), PictureProtocol::sixel, 10, 2));
  CHECK(small.width == 64);
  CHECK(small.height == 32);
  CHECK(small.rgb == Pixels(64 * 32 * 3, 51));
  CHECK_THROWS_WITH(terminal_picture("no png", PictureProtocol::sixel, 80, 24),
                    doctest::Contains("the picture cannot be read"));
}

TEST_CASE("kitty, iTerm and half blocks: the file in pieces, the file, two pixels a letter") {
  Pixels rgb(90 * 90 * 3);
  unsigned state = 7;
  for (auto& value : rgb)
    value = static_cast<std::uint8_t>((state = state * 1103515245 + 12345) >> 16);
  const auto png = png_of(rgb, 90, 90);
  REQUIRE(png.size() > 3 * 4096);
  const auto kitty = terminal_picture(png, PictureProtocol::kitty, 80, 24);
  CHECK(kitty.starts_with("\x1b_Ga=T,f=100,q=2,m=1;iVBORw0K"));
  CHECK(kitty.find("\x1b\\\x1b_Gm=0;") != std::string::npos);
  const auto iterm = terminal_picture(png, PictureProtocol::iterm, 80, 24);
  CHECK(iterm.starts_with("\x1b]1337;File=inline=1;size=" + std::to_string(png.size()) +
                          ":iVBORw0K"));
  const Pixels two{255, 0, 0, 0, 0, 255};
  CHECK(terminal_picture(png_of(two, 1, 2), PictureProtocol::half_blocks, 80, 24) ==
        "\x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m\n");
}

}  // namespace troupe::cli
