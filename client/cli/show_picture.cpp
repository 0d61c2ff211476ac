#include "client/cli/show_picture.h"

#include <png.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "client/cli/terminal.h"

namespace troupe::cli {
namespace {

struct RgbPicture {
  std::size_t width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
};

/// Source: libpng's simplified API.
RgbPicture read_rgb(std::string_view png) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&image, png.data(), png.size()))
    throw std::runtime_error(std::string("the picture cannot be read: ") + image.message);
  image.format = PNG_FORMAT_RGB;
  RgbPicture picture{image.width, image.height, {}};
  picture.rgb.resize(PNG_IMAGE_SIZE(image));
  if (!png_image_finish_read(&image, nullptr, picture.rgb.data(), 0, nullptr)) {
    const std::string why = image.message;
    png_image_free(&image);
    throw std::runtime_error("the picture cannot be read: " + why);
  }
  return picture;
}

std::string base64_letters(std::string_view bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the zero at its end
  return text;
}

using Rgb = std::array<int, 3>;

/// The mean colour of a part of the picture, in parts of `across` × `down` of them.
Rgb mean_colour(const RgbPicture& picture, std::size_t x, std::size_t y, std::size_t across,
                std::size_t down) {
  const auto left = x * picture.width / across, top = y * picture.height / down;
  const auto right = std::max(left + 1, (x + 1) * picture.width / across);
  const auto bottom = std::max(top + 1, (y + 1) * picture.height / down);
  std::array<std::uint64_t, 3> sums{};
  for (auto row = top; row < bottom; ++row)
    for (auto column = left; column < right; ++column)
      for (std::size_t c = 0; c < 3; ++c)
        sums[c] += picture.rgb[(row * picture.width + column) * 3 + c];
  const auto count = (right - left) * (bottom - top);
  return {static_cast<int>(sums[0] / count), static_cast<int>(sums[1] / count),
          static_cast<int>(sums[2] / count)};
}

/// Returns the picture as letters: each has an upper pixel in its own colour and a lower one in its
/// background's.
std::string half_blocks(const RgbPicture& picture, std::size_t columns, std::size_t rows) {
  const double scale = std::min({1.0, static_cast<double>(columns) / picture.width,
                                 2.0 * static_cast<double>(rows) / picture.height});
  const auto across = std::max<std::size_t>(1, static_cast<std::size_t>(picture.width * scale));
  const auto down =
      std::max<std::size_t>(2, static_cast<std::size_t>(picture.height * scale) & ~1u);
  std::string text;
  for (std::size_t y = 0; y < down; y += 2) {
    for (std::size_t x = 0; x < across; ++x) {
      const Rgb upper = mean_colour(picture, x, y, across, down);
      const Rgb lower = mean_colour(picture, x, y + 1, across, down);
      text += fmt::format("\x1b[38;2;{};{};{};48;2;{};{};{}m▀", upper[0], upper[1], upper[2],
                          lower[0], lower[1], lower[2]);
    }
    text += "\x1b[0m\n";
  }
  return text;
}

/// Returns a colour of the cube of 6 × 6 × 6 colours, its red sixth varying slowest: by ordered
/// dithering, so that neighbours differ where a colour lies between two of the cube's.
int dithered(const Rgb& colour, std::size_t x, std::size_t y) {
  constexpr int kThresholds[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
  int index = 0;
  for (const int value : colour)
    index =
        index * 6 + (value * 5 * 16 + (2 * kThresholds[y % 4][x % 4] + 1) * 255 / 2) / (255 * 16);
  return index;
}

/// One letter per column of six pixels, runs of the same as !N and the letter.
std::string with_runs(const std::string& letters) {
  std::string text;
  for (std::size_t at = 0, end = 0; at < letters.size(); at = end) {
    end = std::min(letters.find_first_not_of(letters[at], at), letters.size());
    text +=
        end - at > 3 ? fmt::format("!{}{}", end - at, letters[at]) : letters.substr(at, end - at);
  }
  return text;
}

/// Source: DEC's VT330/VT340 Programmer Reference Manual, chapter 14.
std::string sixels(const RgbPicture& picture, std::size_t columns, std::size_t rows) {
  constexpr std::size_t kLetterWidth = 8, kLetterHeight = 16, kBand = 6;
  const double scale = std::min({1.0, static_cast<double>(columns * kLetterWidth) / picture.width,
                                 static_cast<double>(rows * kLetterHeight) / picture.height});
  const auto across = std::max<std::size_t>(1, static_cast<std::size_t>(picture.width * scale));
  const auto down = std::max<std::size_t>(1, static_cast<std::size_t>(picture.height * scale));
  std::string text = fmt::format("\x1bPq\"1;1;{};{}", across, down);
  for (int colour = 0; colour < 216; ++colour) {
    text += fmt::format("#{};2;{};{};{}", colour, colour / 36 * 20, colour / 6 % 6 * 20,
                        colour % 6 * 20);
  }
  for (std::size_t top = 0; top < down; top += kBand) {
    std::map<int, std::string> letters_of;  // of each colour that the band has
    for (std::size_t y = top; y < std::min(top + kBand, down); ++y) {
      for (std::size_t x = 0; x < across; ++x) {
        auto& letters = letters_of[dithered(mean_colour(picture, x, y, across, down), x, y)];
        letters.resize(across, '?');
        letters[x] = static_cast<char>(letters[x] + (1 << (y - top)));
      }
    }
    for (const auto& [colour, letters] : letters_of)
      text += fmt::format("#{}{}$", colour, with_runs(letters));
    text += "-";
  }
  return text + "\x1b\\\n";
}

/// Source: kitty's graphics protocol; pieces of at most 4096 letters.
std::string kitty_picture(std::string_view png) {
  constexpr std::size_t kPiece = 4096;
  const std::string letters = base64_letters(png);
  std::string text;
  for (std::size_t at = 0; at < letters.size(); at += kPiece) {
    const bool more = at + kPiece < letters.size();
    text += fmt::format("\x1b_G{}m={};{}\x1b\\", at == 0 ? "a=T,f=100,q=2," : "", more ? 1 : 0,
                        letters.substr(at, kPiece));
  }
  return text + "\n";
}

std::string variable_text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

PictureProtocol picture_protocol(std::chrono::milliseconds wait) {
  const auto term = variable_text("TERM"), program = variable_text("TERM_PROGRAM");
  const bool inside = term.starts_with("tmux") || term.starts_with("screen");  // of another one
  if (!inside && (term == "xterm-kitty" || term == "xterm-ghostty" || program == "ghostty"))
    return PictureProtocol::kitty;
  if (!inside && (program == "iTerm.app" || program == "WezTerm" || program == "mintty"))
    return PictureProtocol::iterm;
  constexpr int kSixels = 4;
  const auto attributes =
      term.empty() || term == "dumb" ? std::vector<int>{} : terminal_attributes(wait);
  return std::ranges::find(attributes, kSixels) == attributes.end() ? PictureProtocol::half_blocks
                                                                    : PictureProtocol::sixel;
}

std::string terminal_picture(std::string_view png, PictureProtocol protocol, std::size_t columns,
                             std::size_t rows) {
  switch (protocol) {
    case PictureProtocol::kitty:
      return kitty_picture(png);
    case PictureProtocol::iterm:
      return fmt::format("\x1b]1337;File=inline=1;size={}:{}\a\n", png.size(), base64_letters(png));
    case PictureProtocol::sixel:
      return sixels(read_rgb(png), columns, rows);
    case PictureProtocol::of_terminal:
      return terminal_picture(png, picture_protocol(), columns, rows);
    case PictureProtocol::half_blocks:
      break;
  }
  return half_blocks(read_rgb(png), columns, rows);
}

}  // namespace troupe::cli
