// Sums of products of differences between versions of a row.
#pragma once

#include "kernels/simd/vec.h"

namespace {

void difference_sums(const float* x, std::int64_t x_stride, const float* x1, const float* x2,
                     std::int64_t rows, std::int64_t width, double* sums) {
  double numerator = 0, denominator = 0;
  const int rest = static_cast<int>(width % kLanes);
  const IntVec last = Lanes::numbers() >= kLanes - rest;
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, x1 += width, x2 += width) {
    Vec products{}, squares{};
    const auto add = [&](Vec now, Vec newest, Vec step) {
      products += (now - newest) * step;
      squares += step * step;
    };
    std::int64_t j = 0;
    for (; j + kLanes <= width; j += kLanes) {
      const Vec newest = load(x1 + j);
      add(load(x + j), newest, newest - load(x2 + j));
    }
    if (rest != 0 && j != 0) {
      j = width - kLanes;
      const Vec newest = load(x1 + j), step = newest - load(x2 + j);
      add(load(x + j), newest, last ? step : Vec{});
    } else if (rest != 0) {
      const Vec newest = load_part(x1, rest);
      add(load_part(x, rest), newest, newest - load_part(x2, rest));
    }
    numerator += sum(products);
    denominator += sum(squares);
  }
  sums[0] += numerator;
  sums[1] += denominator;
}

}  // namespace
