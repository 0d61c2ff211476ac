#pragma once
#include <array>
#include <string>
#include <vector>

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

}  // namespace troupe::models
