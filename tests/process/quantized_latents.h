#pragma once
#include <cmath>

#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

namespace troupe::testing {

/// A value that rounding puts on the other side of half a step goes a whole step, and others
/// follow: so where floats are rounded differently, int8 pictures differ by a part of what int8
/// itself changes; by √2 of it where their roundings have nothing in common any more.
constexpr double kApart = 1.5;
/// Bound after one step, in which hardly a value lies that near to a half. Another rule for any
/// scale gives 1 to 1.8.
constexpr double kOneStep = 0.02;

inline Submission quantized(Submission submission) {
  submission.request.weight_dtype = "int8";
  return submission;
}

inline Latents latents_of(const Submission& submission) {
  return shared_cluster().run(submission).latents.value();
}

/// Root of the mean square.
inline double distance(const Latents& a, const Latents& b) {
  REQUIRE(a.shape == b.shape);
  double sum = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i)
    sum += std::pow(double(a.data[i]) - double(b.data[i]), 2);
  return std::sqrt(sum / double(a.data.size()));
}

inline bool same_bits(const Latents& a, const Latents& b) {
  return a.shape == b.shape && a.data == b.data;
}

}  // namespace troupe::testing
