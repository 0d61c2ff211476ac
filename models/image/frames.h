#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "models/image/png_text.h"

namespace troupe::models {

/// Frames per second of a video if nobody names a number: the rate that Wan 2.1 was trained at.
inline constexpr int kFramesPerSecond = 16;

/// PNGs of one size, one frame each, as one animated PNG that repeats, with its text chunks as
/// add_png_text lays them down. A single frame stays a plain PNG. Who does not know animations
/// shows the first frame. Throws std::invalid_argument for no frames, and for PNGs that are damaged
/// or of different headers.
std::string join_frames(const std::vector<std::string>& pngs, const PngText& text,
                        int frames_per_second);

/// Every frame of what join_frames made as a PNG of its own, with the text in each; a plain PNG is
/// its only frame. Throws std::runtime_error for a damaged file, and for an animation of frames
/// that are not whole pictures.
std::vector<std::string> split_frames(std::string_view png);

/// Returns the same animation shown at another speed, 1 to 1000. A plain PNG stays as it is.
std::string at_speed(std::string_view png, int frames_per_second);

}  // namespace troupe::models
