#include "models/spec/resolution_bins.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace troupe::spec {
namespace {

/// A size in sixteenths of the native side, and the ratio of height to width that it is known by:
/// rounded to two places, and by that number nearness is judged.
struct Bin {
  double ratio;
  int height;
  int width;
};

// clang-format off
constexpr Bin kBins[] = {
  {0.25, 8, 32}, {0.28, 8, 29}, {0.32, 9, 28}, {0.33, 9, 27}, {0.35, 9, 26}, {0.4, 10, 25},
  {0.42, 10, 24}, {0.48, 11, 23}, {0.5, 11, 22}, {0.52, 11, 21}, {0.57, 12, 21}, {0.6, 12, 20},
  {0.68, 13, 19}, {0.72, 13, 18}, {0.78, 14, 18}, {0.82, 14, 17}, {0.88, 15, 17}, {0.94, 15, 16},
  {1.0, 16, 16}, {1.07, 16, 15}, {1.13, 17, 15}, {1.21, 17, 14}, {1.29, 18, 14}, {1.38, 18, 13},
  {1.46, 19, 13}, {1.67, 20, 12}, {1.75, 21, 12}, {2.0, 22, 11}, {2.09, 23, 11}, {2.4, 24, 10},
  {2.5, 25, 10}, {3.0, 27, 9}, {4.0, 32, 8},
};
// clang-format on

}  // namespace

PixelSize nearest_bin(std::int64_t sample_size, PixelSize wanted) {
  if (sample_size != 32 && sample_size != 64 && sample_size != 128) {
    throw std::invalid_argument("[nearest_bin] sample_size is " + std::to_string(sample_size) +
                                ": there are resolution bins for 32, 64 and 128");
  }
  if (wanted.height <= 0 || wanted.width <= 0) {
    throw std::invalid_argument("[nearest_bin] " + std::to_string(wanted.height) + " x " +
                                std::to_string(wanted.width) + " is no size of a picture");
  }
  const double ratio = static_cast<double>(wanted.height) / static_cast<double>(wanted.width);
  const auto* bin = std::ranges::min_element(
      kBins, {}, [ratio](const Bin& candidate) { return std::abs(candidate.ratio - ratio); });
  const std::int64_t unit = sample_size / 2;  // eight pixels a latent pixel, sixteen units a side
  return {bin->height * unit, bin->width * unit};
}

}  // namespace troupe::spec
