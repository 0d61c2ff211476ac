#include "models/samplers/table_math.h"

namespace troupe::models::table {

std::vector<float> linspace(double from, double to, int n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  const auto first = static_cast<float>(from), last = static_cast<float>(to);
  const float step = n > 1 ? (last - first) / static_cast<float>(n - 1) : 0.0f;
  for (int i = 0; i < n; ++i) {
    out[i] = i < n / 2 ? std::fma(step, static_cast<float>(i), first)
                       : std::fma(-step, static_cast<float>(n - 1 - i), last);
  }
  return out;
}

}  // namespace troupe::models::table
