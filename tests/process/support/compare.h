#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "tests/process/support/tensors.h"

namespace troupe::testing {

/// The largest distance as a fraction of the expected values' own range; infinity when shapes
/// differ or a value is not finite.
inline double range_error(const Latents& actual, const Latents& expected) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (actual.shape != expected.shape || actual.data.size() != expected.data.size()) return kNever;
  double worst = 0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    const double distance = std::abs(double(actual.data[i]) - double(expected.data[i]));
    if (!std::isfinite(distance)) return kNever;
    worst = std::max(worst, distance);
  }
  const auto [low, high] = std::minmax_element(expected.data.begin(), expected.data.end());
  return worst / (double(*high) - double(*low));
}

/// The largest distance in 8-bit levels; 256 when shapes differ.
inline int level_error(const Bytes& actual, const Bytes& expected) {
  if (actual.shape != expected.shape || actual.data.size() != expected.data.size()) return 256;
  int worst = 0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    worst = std::max(worst, std::abs(int(actual.data[i]) - int(expected.data[i])));
  }
  return worst;
}

/// The largest value seen and what it was seen at.
struct Worst {
  double value = 0;
  std::string where = "nowhere";
  int seen = 0;

  void see(double candidate, const std::string& at) {
    ++seen;
    if (candidate < value) return;
    value = candidate;
    where = at;
  }
};

}  // namespace troupe::testing
