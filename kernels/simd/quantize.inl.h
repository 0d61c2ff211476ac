// Rows as 8-bit integers, and sums of such products as floats again. See vec.h for how this file is
// compiled.
#pragma once

#include "kernels/simd/gemm.inl.h"
#include "kernels/simd/isa.h"
#include "kernels/simd/vec.h"

namespace {

using troupe::kernels::simd::ScaleTask;

typedef std::int8_t ByteVec __attribute__((vector_size(TROUPE_LANES)));
typedef std::int8_t LooseByteVec __attribute__((vector_size(TROUPE_LANES), aligned(1), may_alias));
typedef std::int32_t LooseIntVec
    __attribute__((vector_size(4 * TROUPE_LANES), aligned(4), may_alias));

constexpr float kLargestByte = 127.0f;
/// Rows whose values are all smaller than this count as zeros: 127 / x would overflow.
constexpr float kSmallestRow = 1e-35f;

inline Vec magnitude(Vec x) {
  return larger(x, -x);
}

void largest_of_rows(const float* x, std::int64_t rows, std::int64_t width, float* largest_of) {
  for (std::int64_t row = 0; row < rows; ++row, x += width) {
    // A comparison loses a NaN, and a product with zero keeps it.
    Vec most{}, poison{};
    std::int64_t j = 0;
    for (; j + kLanes <= width; j += kLanes) {
      const Vec v = load(x + j);
      most = larger(magnitude(v), most);
      poison += v * 0.0f;
    }
    if (j < width) {
      const Vec v = load_part(x + j, static_cast<int>(width - j));
      most = larger(magnitude(v), most);
      poison += v * 0.0f;
    }
    largest_of[row] = largest(most) + sum(poison);
  }
}

/// Nearest integers, ties to even, of values within ±2^22.
inline IntVec nearest(Vec x) {
  constexpr float kRounder = 12582912.0f;
  const Vec shifted = x + kRounder;
  return (IntVec)shifted - 0x4b400000;
}

void quantize_rows(const float* x, std::int64_t rows, std::int64_t width, const float* largest_of,
                   std::int8_t* bytes) {
  for (std::int64_t row = 0; row < rows; ++row, x += width, bytes += width) {
    const float most = largest_of[row];
    const float factor =
        most > kSmallestRow && most < __builtin_inff() ? kLargestByte / most : 0.0f;
    if (factor == 0.0f) {
      for (std::int64_t j = 0; j < width; ++j)
        bytes[j] = 0;
      continue;
    }
    std::int64_t j = 0;
    for (; j + kLanes <= width; j += kLanes)
      *reinterpret_cast<LooseByteVec*>(bytes + j) =
          __builtin_convertvector(nearest(load(x + j) * factor), ByteVec);
    if (j < width) {
      const int rest = static_cast<int>(width - j);
      const IntVec last = nearest(load_part(x + j, rest) * factor);
      for (int i = 0; i < rest; ++i)
        bytes[j + i] = static_cast<std::int8_t>(last[i]);
    }
  }
}

template <bool kInteger>
inline Vec load_sums(const ScaleTask& task, std::int64_t at, int count) {
  if constexpr (kInteger) {
    if (count == kLanes) {
      return __builtin_convertvector(*reinterpret_cast<const LooseIntVec*>(task.integers + at),
                                     Vec);
    }
    IntVec part{};
    for (int i = 0; i < count; ++i)
      part[i] = task.integers[at + i];
    return __builtin_convertvector(part, Vec);
  } else {
    return count == kLanes ? load(task.floats + at) : load_part(task.floats + at, count);
  }
}

template <bool kInteger>
void scale_sums_of(const ScaleTask& task) {
  const bool adds = task.epilogue == Epilogue::kAdd || task.epilogue == Epilogue::kGatedAdd;
  const bool gates = task.epilogue == Epilogue::kGatedAdd;
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    const std::int64_t base = (row - task.row_begin) * task.columns;
    const float scale = task.largest[row] / kLargestByte;
    float* out = task.out + row * task.columns;
    const float* gate = gates ? task.gate + row / task.gate_rows * task.gate_stride : nullptr;
    for (std::int64_t j = 0; j < task.columns; j += kLanes) {
      const int count = static_cast<int>(task.columns - j < kLanes ? task.columns - j : kLanes);
      const auto get = [count](const float* p) {
        return count == kLanes ? load(p) : load_part(p, count);
      };
      Vec y = load_sums<kInteger>(task, base + j, count) * (scale * get(task.scales + j));
      if (task.bias) y += get(task.bias + j);
      const Vec result =
          finish(task.epilogue, y, adds ? get(out + j) : Vec{}, gates ? get(gate + j) : Vec{});
      if (count == kLanes) {
        store(out + j, result);
      } else {
        store_part(out + j, result, count);
      }
    }
  }
}

void scale_sums(const ScaleTask& task) {
  task.integers ? scale_sums_of<true>(task) : scale_sums_of<false>(task);
}

}  // namespace
