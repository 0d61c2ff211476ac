#pragma once
#include <algorithm>
#include <string>

#include "models/image/clip_frame.h"
#include "models/image/png_text.h"

namespace troupe::models {

/// Properties of a clip that a writer knows before the first frame.
struct ClipShape {
  int width = 0;
  int height = 0;
  int frames_per_second = 1;
  int quality = 90;  // 1 to 100
  PngText text;      // goes where kClipTextPlaces says; what has no place there is left out
};

/// Makes a video file of frames. Both calls throw std::runtime_error where the encoder fails.
class ClipWriter {
 public:
  virtual ~ClipWriter() = default;
  virtual void write(const ClipFrame& frame) = 0;
  /// The file's bytes; at least one frame was written, and none follows.
  virtual std::string end() = 0;
};

/// Frames at most from one key frame to the next: where players may begin.
constexpr int key_interval(int frames_per_second) {
  constexpr int kLongestSeconds = 16, kMostFrames = 128;
  return std::min(frames_per_second * kLongestSeconds, kMostFrames);
}

}  // namespace troupe::models
