#pragma once
#include <cmath>
#include <vector>

/// Functions of a schedule's tables: float32, rounded once from double. ATen's come from a vendor's
/// library, whose last bit depends on the processor; a schedule that ends near zero signal makes a
/// hundred times as much of it.
namespace troupe::models::table {

inline float sqrt(float x) {
  return static_cast<float>(std::sqrt(static_cast<double>(x)));
}
inline float log(float x) {
  return static_cast<float>(std::log(static_cast<double>(x)));
}
inline float exp(float x) {
  return static_cast<float>(std::exp(static_cast<double>(x)));
}
inline float expm1(float x) {
  return static_cast<float>(std::expm1(static_cast<double>(x)));
}

/// Returns n values from `from` to `to` as ATen's vector code computes them: from either end to the
/// middle, product and sum rounded together.
std::vector<float> linspace(double from, double to, int n);

}  // namespace troupe::models::table
