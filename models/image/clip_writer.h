#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "models/image/png_text.h"

namespace troupe::models {

/// A side in whole pairs of pixels.
constexpr int even(int side) {
  return side + side % 2;
}

/// A frame as video codecs take it: 8 bits, luma and chroma apart, chroma of half the size in both
/// directions (4:2:0), BT.709 in studio range. Planes have whole pairs of rows and columns; of an
/// odd size the last row or column is repeated.
class ClipFrame {
 public:
  ClipFrame(int width, int height);

  int width() const { return width_; }
  int height() const { return height_; }
  /// 0: luma, 1 and 2: chroma; rows of stride(plane) bytes.
  const unsigned char* plane(int plane) const {
    return planes_[static_cast<std::size_t>(plane)].data();
  }
  int stride(int plane) const { return plane == 0 ? even_width() : even_width() / 2; }
  int even_width() const { return even(width_); }
  int even_height() const { return even(height_); }

  /// The pixels of a PNG of this size. Throws std::runtime_error for one that cannot be read.
  void read(const std::string& png);

 private:
  void fill();

  int width_;
  int height_;
  std::array<std::vector<unsigned char>, 3> planes_;
  std::vector<unsigned char> rgb_;
};

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

/// H.264 in MP4, by OpenH264 and a writer of our own, the index before the frames, so that players
/// begin while it comes. Of an odd size the last row or column is there twice. Throws
/// std::runtime_error where the encoder does not begin, and for frames beyond H.264's level 5.2.
std::unique_ptr<ClipWriter> mp4_writer(const ClipShape& shape);

/// VP9 in WebM, by libvpx and libmatroska. Throws std::runtime_error where the encoder does not
/// begin.
std::unique_ptr<ClipWriter> webm_writer(const ClipShape& shape);

}  // namespace troupe::models
