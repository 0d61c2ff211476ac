#pragma once

#include <cstdint>

namespace troupe::spec {

/// Height and width of a picture in pixels.
struct PixelSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const PixelSize&) const = default;
};

/// The size, of those that PixArt was trained at, whose aspect ratio is nearest to the wanted one;
/// of two equally near the flatter. `sample_size` is the transformer's, in latent pixels, and picks
/// the table: 32, 64 and 128 have bins of about 256, 512 and 1024 pixels a side. Throws
/// std::invalid_argument for another sample_size and for a size that is not positive.
/// Source: ASPECT_RATIO_*_BIN and classify_height_width_bin of diffusers 0.42.
PixelSize nearest_bin(std::int64_t sample_size, PixelSize wanted);

}  // namespace troupe::spec
