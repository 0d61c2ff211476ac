#pragma once
#include <cstddef>
#include <cstdint>

namespace troupe::models {

/// Of a PNG that is taken from outside, by clients, the controller and actors alike.
inline constexpr std::uint64_t kMaxPngBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMaxPngPixels = std::uint64_t{1} << 28;

}  // namespace troupe::models
