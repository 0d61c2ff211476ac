#pragma once
#include <stop_token>
#include <string>
#include <string_view>

namespace troupe::web {

/// How many pictures a PNG file has, and how many of them are shown in a second (of a plain one:
/// 1).
struct Clip {
  int frames = 1;
  int frames_per_second = 1;
};
Clip clip_of(std::string_view png);

/// A WebM file (VP9, 4:2:0, BT.709) of an animated PNG as models::join_frames makes it. `quality`:
/// 1 to 100. Throws std::runtime_error for a PNG that cannot be read, and where it is told to stop.
std::string webm_file(std::string_view png, int quality, std::stop_token stop = {});

}  // namespace troupe::web
