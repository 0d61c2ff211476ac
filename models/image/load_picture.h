#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::models {

struct Pixels {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::vector<std::uint8_t> rgb;  // rows from above, three bytes a pixel
  bool is_of_alpha = false;       // the rule for alpha has made them others
};

/// Rule by which a picture's alpha is removed.
enum class AlphaUse {
  dropped,      // as diffusers' load_image has it
  over_white,   // blended with white, as A1111 does with a picture to begin with
  mask,         // A1111's rule: a mask that is not opaque is white where its alpha is above 128
  clear_parts,  // OpenAI's rule: what is transparent is white; without alpha its colours count
};

/// The pixels of a PNG, JPEG or WebP as 8-bit RGB, upright, with the values that Pillow and
/// diffusers' load_image give: of 16-bit colours the high byte, of 16-bit grays v / 257, CMYK as
/// Adobe writes it; of an animation the first frame; gamma and colour profiles are ignored. The
/// work is bounded: chunks beside a PNG's pixels are not unpacked, and of a JPEG at most 64 scans
/// are read. `tick` is called every few rows and may throw. Throws std::runtime_error as
/// read_picture_header does, and for a file that is damaged.
Pixels load_picture(std::string_view file, AlphaUse alpha = AlphaUse::dropped,
                    const std::function<void()>& tick = {});

/// A PNG file of them, packed fast and not tightly. Throws std::runtime_error.
std::string write_png(const Pixels& pixels);

}  // namespace troupe::models
