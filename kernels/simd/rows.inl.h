// Row-wise operations: layer normalisation with modulation, gated addition, GELU; sums of products
// of differences between versions of a row.
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

void norm_modulate(const float* x, std::int64_t rows, std::int64_t width, const float* scale,
                   const float* shift, float eps, float* out) {
  const std::int64_t whole = width / kLanes * kLanes;
  const float inverse = 1.0f / static_cast<float>(width);
  for (std::int64_t r = 0; r < rows; ++r, x += width, out += width) {
    Vec total{};
    for (std::int64_t j = 0; j < whole; j += kLanes)
      total += load(x + j);
    float mean = sum(total);
    for (std::int64_t j = whole; j < width; ++j)
      mean += x[j];
    mean *= inverse;
    Vec squares{};
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      const Vec d = load(x + j) - mean;
      squares += d * d;
    }
    float variance = sum(squares);
    for (std::int64_t j = whole; j < width; ++j)
      variance += (x[j] - mean) * (x[j] - mean);
    const float factor = 1.0f / __builtin_sqrtf(variance * inverse + eps);
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      store(out + j, (load(x + j) - mean) * factor * (1.0f + load(scale + j)) + load(shift + j));
    }
    for (std::int64_t j = whole; j < width; ++j)
      out[j] = (x[j] - mean) * factor * (1.0f + scale[j]) + shift[j];
  }
}

template <bool kBias, bool kGate>
void add_rows_with(float* residual, const float* x, const float* bias, const float* gate,
                   std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, x += width, residual += width) {
    for (std::int64_t j = 0; j < width; ++j) {
      float y = x[j];
      if constexpr (kBias) y += bias[j];
      if constexpr (kGate) y *= gate[j];
      residual[j] += y;
    }
  }
}

void add_rows(float* residual, const float* x, const float* bias, const float* gate,
              std::int64_t rows, std::int64_t width) {
  const auto add = bias ? (gate ? add_rows_with<true, true> : add_rows_with<true, false>)
                        : (gate ? add_rows_with<false, true> : add_rows_with<false, false>);
  add(residual, x, bias, gate, rows, width);
}

void gelu_rows(float* x, std::int64_t count) {
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes)
    store(x + j, gelu(load(x + j)));
  if (j < count)
    store_part(x + j, gelu(load_part(x + j, static_cast<int>(count - j))),
               static_cast<int>(count - j));
}

}  // namespace
