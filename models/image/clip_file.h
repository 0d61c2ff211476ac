#pragma once
#include <array>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/choice.h"

namespace troupe {

namespace models {
/// A clip's file: an animated PNG, VP9 in WebM, H.264 in MP4. The names are the files' endings.
enum class ClipFormat { apng, webm, mp4 };
}  // namespace models
template <>
inline constexpr auto kNamesOf<models::ClipFormat> =
    std::to_array<std::string_view>({"apng", "webm", "mp4"});

}  // namespace troupe

namespace troupe::models {

/// Number of pictures that a PNG file has, and of those shown in a second (both 1 for a plain PNG).
struct Clip {
  int frames = 1;
  int frames_per_second = 1;
};
Clip clip_of(std::string_view png);

inline constexpr int kClipQuality = 90;

/// An animated PNG as join_frames makes it, or a plain one, as a clip of that format: 4:2:0,
/// BT.709, with its text (clip_text.h). `quality`: 1 to 100, the same from the first frame to the
/// last. As apng it stays as it is. Throws std::runtime_error for a PNG that cannot be read, for a
/// size that the format cannot hold, and where it is told to stop.
std::string clip_file(std::string_view png, ClipFormat format, int quality = kClipQuality,
                      std::stop_token stop = {});

}  // namespace troupe::models
