// Row-wise operations: layer normalisation with modulation, gated addition, GELU.
#pragma once

#include "kernels/simd/vec.h"

namespace {

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
