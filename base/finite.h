#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>

namespace troupe {

/// The index of the first value that is infinite or NaN.
inline std::optional<std::size_t> first_not_finite(std::span<const float> values) {
  const auto odd = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (odd == values.end()) return std::nullopt;
  return static_cast<std::size_t>(odd - values.begin());
}

}  // namespace troupe
