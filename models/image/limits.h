#pragma once
#include <cstdint>

namespace troupe::models {

/// Bytes of a file of a picture or clip that is read.
inline constexpr std::uint64_t kMaxPictureBytes = std::uint64_t{1} << 30;
/// Bytes that each of its pixels takes at most while it is decoded and turned.
inline constexpr std::uint64_t kPictureBytesOfPixel = 12;
/// Pixels of a picture that is taken from outside, by clients, the controller and actors alike.
inline constexpr std::uint64_t kMaxPicturePixels = std::uint64_t{1} << 26;
/// Most bytes that the file of a picture may have beside its pixels: texts, profiles, EXIF, further
/// frames.
inline constexpr std::uint64_t kMaxBesidePixels = std::uint64_t{16} << 20;

/// Bytes that the file of a picture of this size has at most: twice what four channels of 16 bits
/// take, and what is beside.
constexpr std::uint64_t most_picture_bytes(std::uint64_t height, std::uint64_t width) {
  return 16 * height * width + kMaxBesidePixels;
}

}  // namespace troupe::models
