#pragma once
#include <cstdint>

namespace troupe::models {

/// Bytes of a file of a picture or clip that is read.
inline constexpr std::uint64_t kMaxPictureBytes = std::uint64_t{1} << 30;
/// Bytes that each of its pixels takes at most while it is decoded and turned.
inline constexpr std::uint64_t kPictureBytesOfPixel = 12;
/// Pixels of a picture that is taken from outside, by clients, the controller and actors alike.
inline constexpr std::uint64_t kMaxPicturePixels = std::uint64_t{1} << 26;

}  // namespace troupe::models
